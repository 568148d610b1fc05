// SPDX-License-Identifier: Apache-2.0
#include "pride/gradient_mean.h"

#include <limits>
#include <map>

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

  // The frames of calls with as many values.
  struct Kept {
    Kept(std::size_t n, int world)
        : buckets(make_buckets(Layout({{"gradients", {static_cast<std::int64_t>(n)}}}), n, world)) {
    }
    std::vector<Bucket> buckets;  // one
    Flight flight;
  };

  Impl(Communicator& ranks, const GradientMeanOptions& options)
      : comm(ranks),
        space(space_on(options.device)),
        method({.layout = no_tensors,
                .world = ranks.size(),
                .options = checked(options.dense, options.device != nullptr),
                .space = *space},
               *space),
        sent_before(ranks.traffic().bytes_sent) {}

  void exchange_bucket(const StepContext& ctx, const BucketStep& step, const Tensor& values,
                       Flight& flight) {
    place = {values.data, 0, values.dtype};
    step.encode(0, ctx, {.places = &place}, flight);
    step.finish_frames(ctx, flight);
    for (std::size_t k = 0; k < flight.parts.size() && !flight.non_finite; ++k) {
      exchange(comm, method, flight.parts[k], ctx, {}, scratch, flight.wires[k]);
      flight.non_finite = flight.wires[k].non_finite;
    }
  }

  bool run(const Tensor& values) {
    if (kept.size() > kMostSizes) kept.clear();
    Kept& of = kept.try_emplace(values.n, values.n, comm.size()).first->second;
    StepContext ctx;
    ctx.step = calls - 1;
    ctx.rank = comm.rank();
    ctx.voters = comm.size();
    ctx.groups = {&scalars, 1};
    ctx.unused = {&uses_all, 1};
    ctx.memory = space.get();
    BucketStep step(method, of.buckets, *space);
    Flight& flight = of.flight;
    exchange_bucket(ctx, step, values, flight);
    FlatBuffer wide;
    if (values.dtype != DType::kFloat32) wide = FlatBuffer::room(values.n, *space);
    const std::span<float> mean = values.dtype == DType::kFloat32
                                      ? std::span(static_cast<float*>(values.data), values.n)
                                      : wide.span();
    if (flight.non_finite) {
      space->run(kernels::Fill{mean, std::numeric_limits<float>::quiet_NaN()});
    } else {
      step.apply(0, flight, ctx, {.flat = mean, .memory = space.get()});
    }
    if (values.dtype == DType::kBFloat16) {
      space->run(
          kernels::Copy{mean, {static_cast<std::uint16_t*>(values.data), nullptr, values.n}});
    } else if (values.dtype == DType::kFloat16) {
      space->run(kernels::Publish{mean, {static_cast<Float16*>(values.data), values.n}});
    }
    return !flight.non_finite;
  }

  Communicator& comm;
  std::unique_ptr<Space> space;
  const Layout no_tensors{{}};
  methods::DenseMethod<Assign> method;
  const StepScalars scalars = {};
  const char uses_all = 0;
  GradientPlace place;
  std::map<std::size_t, Kept> kept;
  Scratch scratch;
  std::int64_t calls = 0;
  std::uint64_t sent_before = 0;
};

GradientMean::GradientMean(Communicator& comm, GradientMeanOptions options)
    : impl_(std::make_unique<Impl>(comm, options)) {}
GradientMean::~GradientMean() = default;

bool GradientMean::run(Tensor values, void* stream) {
  ++impl_->calls;
  if (values.n == 0) return true;
  PRIDE_CHECK(values.data != nullptr, "gradient mean: no values");
  const Communicator::Scope scope(impl_->comm, concat("gradient mean, call ", impl_->calls));
  try {
    if (!impl_->space->is_host()) impl_->space->after(stream);
    const bool finite = impl_->run(values);
    if (!impl_->space->is_host()) impl_->space->before(stream);
    return finite;
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& e) {
    impl_->comm.fail(e.what());  // others wait for this rank
    throw;
  }
}

std::uint64_t GradientMean::bytes_sent() const noexcept {
  return impl_->comm.traffic().bytes_sent - impl_->sent_before;
}

}  // namespace pride
