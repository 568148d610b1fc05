// SPDX-License-Identifier: Apache-2.0
#include "pride/gradient_mean.h"

#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "device/device_space.h"
#include "methods/dense.h"
#include "optimizer/bucket_step.h"
#include "pride/error.h"
#include "pride/registry.h"

namespace pride {
namespace {

constexpr std::size_t kMostSizes = 256;  // for which frames are kept

std::unique_ptr<Space> space_on(std::shared_ptr<Device> device) {
  if (device == nullptr) return Space::make_host();
  return std::make_unique<DeviceSpace>(std::move(device));
}

OptionValues checked(const std::string& dense, bool on_device) {
  OptionValues options({{"dense", dense}}, "gradient mean");
  methods::dense_option(options);
  const std::string why = on_device ? methods::dense_host_only(options) : "";
  PRIDE_CHECK(why.empty(), "gradient mean: ", why);
  return options;
}

}  // namespace

struct GradientMean::Impl {
  // x = g
  class Assign final : public rules::Rule {
   public:
    Assign(StateTable&, StateKind, Space& space) : space_(space) {}
    void step(std::size_t, const Values& g, const StepScalars&, Floats x, Guard) override {
      space_.run(kernels::Widen{g, x.span()});
    }

   private:
    Space& space_;
  };

  // Tensors of these sizes, and the frames of their exchange.
  struct Kept {
    Kept(const std::vector<std::size_t>& sizes, int world)
        : layout(specs_of(sizes)), buckets(make_buckets(layout, layout.flat_size(), world)) {}
    Layout layout;
    std::vector<Bucket> buckets;  // one
    Flight flight;
  };
  static std::vector<TensorSpec> specs_of(const std::vector<std::size_t>& sizes) {
    std::vector<TensorSpec> specs;
    for (const std::size_t n : sizes) {
      specs.push_back({concat("tensor ", specs.size()), {static_cast<std::int64_t>(n)}});
    }
    return specs;
  }

  Impl(Communicator& ranks, const GradientMeanOptions& options)
      : comm(ranks),
        space(space_on(options.device)),
        method({.layout = no_tensors,
                .world = ranks.size(),
                .options = checked(options.dense, options.device != nullptr),
                .space = *space},
               *space) {}

  void exchange_bucket(const StepContext& ctx, const BucketStep& step, Flight& flight) {
    step.encode(0, ctx, {.places = gradients.data()}, flight);
    step.finish_frames(ctx, flight);
    for (std::size_t k = 0; k < flight.parts.size() && !flight.non_finite; ++k) {
      exchange(comm, method, flight.parts[k], ctx, {}, scratch, flight.wires[k]);
      flight.non_finite = flight.wires[k].non_finite;
    }
  }

  bool run(const Tensor& values, std::span<const std::size_t> sizes) {
    std::vector<std::size_t> key(sizes.begin(), sizes.end());
    if (sizes.empty()) key = {values.n};
    const std::size_t sum = std::accumulate(key.begin(), key.end(), std::size_t{0});
    PRIDE_CHECK(sum == values.n, "gradient mean: ", key.size(), " tensors have ", sum,
                " values, given are ", values.n);
    PRIDE_CHECK(values.n == 0 || values.data != nullptr, "gradient mean: no values");
    if (values.n == 0) return true;
    if (kept.size() > kMostSizes) kept.clear();
    Kept& of = kept.try_emplace(key, key, comm.size()).first->second;
    place(values, of.layout);
    const std::vector<char> unused(key.size(), 0);
    StepContext ctx;
    ctx.step = calls - 1;
    ctx.rank = comm.rank();
    ctx.voters = comm.size();
    ctx.groups = {&scalars, 1};
    ctx.unused = unused;
    ctx.memory = space.get();
    BucketStep step(method, of.buckets, *space);
    exchange_bucket(ctx, step, of.flight);
    if (of.flight.non_finite) {
      for (const ParameterPlace& mean : means) {
        space->run(kernels::Fill{mean.values.span(), std::numeric_limits<float>::quiet_NaN()});
      }
    } else {
      step.apply(0, of.flight, ctx, {.places = means.data(), .memory = space.get()});
    }
    round_to(values);
    return !of.flight.non_finite;
  }

  // The tensors as gradients, and where their means go: the same memory if it is float32.
  void place(const Tensor& values, const Layout& layout) {
    const bool in_place = values.dtype == DType::kFloat32;
    wide = in_place ? FlatBuffer() : FlatBuffer::room(values.n, *space);
    float* const to = in_place ? static_cast<float*>(values.data) : wide.data();
    gradients.clear(), means.clear();
    std::size_t at = 0;
    for (const TensorSlot& slot : layout.tensors()) {
      gradients.push_back({static_cast<const std::byte*>(values.data) + at * size_of(values.dtype),
                           slot.offset, values.dtype});
      means.push_back({Floats(to + at, slot.n), slot.offset});
      at += slot.n;
    }
  }
  void round_to(const Tensor& values) {
    if (values.dtype == DType::kBFloat16) {
      space->run(kernels::Copy{wide.span(),
                               {static_cast<std::uint16_t*>(values.data), nullptr, values.n}});
    } else if (values.dtype == DType::kFloat16) {
      space->run(kernels::Publish{wide.span(), {static_cast<Float16*>(values.data), values.n}});
    }
  }

  Communicator& comm;
  std::unique_ptr<Space> space;
  const Layout no_tensors{{}};
  methods::DenseMethod<Assign> method;
  const StepScalars scalars = {};
  std::vector<GradientPlace> gradients;  // of the call
  std::vector<ParameterPlace> means;
  FlatBuffer wide;  // means in float32, if the values are not
  std::map<std::vector<std::size_t>, Kept> kept;
  Scratch scratch;
  std::int64_t calls = 0;
  std::uint64_t sent = 0;
};

GradientMean::GradientMean(Communicator& comm, GradientMeanOptions options)
    : impl_(std::make_unique<Impl>(comm, options)) {}
GradientMean::~GradientMean() = default;

bool GradientMean::run(Tensor values, std::span<const std::size_t> sizes, void* stream) {
  Impl& impl = *impl_;
  ++impl.calls;
  const Communicator::Scope scope(impl.comm, concat("gradient mean, call ", impl.calls));
  try {
    const std::uint64_t sent_before = impl.comm.traffic().bytes_sent;
    if (!impl.space->is_host()) impl.space->after(stream);
    const bool finite = impl.run(values, sizes);
    if (!impl.space->is_host()) impl.space->before(stream);
    impl.sent += impl.comm.traffic().bytes_sent - sent_before;
    return finite;
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& e) {
    impl.comm.fail(e.what());  // others wait for this rank
    throw;
  }
}

std::uint64_t GradientMean::bytes_sent() const noexcept { return impl_->sent; }

}  // namespace pride
