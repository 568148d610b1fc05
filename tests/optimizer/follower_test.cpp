// Two parts of a model, each with its optimizer, on every rank: each follows the other.
// Oracle: the parameters of the part's own optimizer, bit for bit.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "codecs/signs.h"
#include "pride/error.h"
#include "pride/result_follower.h"
#include "support/replayed_peers.h"
#include "support/test_device.h"
#include "support/training.h"

namespace pride::follower_test {
namespace {

using testing::TestDevice;

const std::array<std::vector<TensorSpec>, 2> kParts = {
    {{{"embedding", {97, 8}, 0, 0}, {"b1", {65}, 1, 2880}, {"empty", {0, 3}, 0, 3008}},
     {{"w1", {65, 31}, 0, 832}, {"w2", {7, 65}, 1, 3008}}}};

// Values of a part's tensors, each by itself, on the host or on a device.
class Values {
 public:
  Values(const Layout& layout, TestDevice* device) : device_(device) {
    for (const TensorSlot& slot : layout.tensors()) {
      memory_.emplace_back(slot.n);
      tensors.emplace_back(device ? device->allocate(4 * slot.n + 4) : memory_.back().data(),
                           slot.n, DType::kFloat32);
    }
  }
  void set(const std::function<float(std::size_t tensor, std::size_t i)>& value) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (std::size_t i = 0; i < tensors[t].n; ++i) memory_[t][i] = value(t, i);
      if (device_) device_->put(tensors[t].data, std::as_bytes(std::span(memory_[t])));
    }
  }
  std::vector<std::vector<float>> get() {
    for (std::size_t t = 0; device_ && t < tensors.size(); ++t) {
      device_->get(tensors[t].data, std::as_writable_bytes(std::span(memory_[t])));
    }
    return memory_;
  }
  std::vector<ConstTensor> gradients() const {
    std::vector<ConstTensor> all;
    for (const Tensor& t : tensors) all.emplace_back(t.data, t.n, t.dtype);
    return all;
  }
  std::vector<Tensor> tensors;

 private:
  TestDevice* device_;
  std::vector<std::vector<float>> memory_;
};

// A part on one rank: its own parameters, and those that the other part's optimizer holds of it.
struct Side {
  Side(Communicator& comm, std::size_t number, const OptimizerOptions& options, TestDevice* device)
      : part(number),
        layout(kParts[number]),
        x(layout, device),
        g(layout, device),
        seen(layout, device),
        optimizer(comm, layout, options) {
    for (Values* values : {&x, &seen}) {
      values->set([&](std::size_t t, std::size_t i) { return testing::initial(3 * part + t, i); });
    }
  }
  // nan: its first value is not finite.
  StepReport step(int rank, int step, bool nan = false) {
    g.set([&](std::size_t t, std::size_t i) {
      return nan && part == 1 && i == 0 ? NAN : testing::gradient(rank, step, 3 * part + t, i);
    });
    const std::size_t n = layout.tensors().size();
    const auto unused = std::make_unique<bool[]>(n);
    unused[1] = step == 1 || (rank + step) % 3 == 0;  // in step 1 on all ranks
    frozen = std::make_unique<bool[]>(n);
    frozen[0] = part == 1 && step == 3;
    optimizer.set_frozen({frozen.get(), n});
    return optimizer.step(x.tensors, g.gradients(), {unused.get(), n});
  }
  std::span<const bool> flags() const { return {frozen.get(), layout.tensors().size()}; }

  std::size_t part;
  Layout layout;
  Values x, g, seen;
  Optimizer optimizer;
  std::unique_ptr<bool[]> frozen;
};

OptimizerOptions options_of(const std::string& method, std::size_t bucket_coords) {
  OptimizerOptions options;
  testing::set_method(options, method);
  options.groups = {{.weight_decay = 0.1}, {.lr = 0.25}};
  options.bucket_coords = bucket_coords;
  options.seed = 3;
  options.non_finite = NonFinitePolicy::kSkip;
  return options;
}

// Bytes of state and of what is held beside it; frames are others.
std::uint64_t held(const Optimizer& optimizer) {
  const MemoryUse use = optimizer.memory();
  return use.state + use.masters + use.scratch;
}

// Steps of both parts; the third is skipped by part 1.
void follow_each_other(Communicator& comm, OptimizerOptions options,
                       const std::shared_ptr<TestDevice>& device) {
  options.device = device;
  if (device) options.orthogonalise = testing::by_blas;
  std::array<Side, 2> sides = {Side(comm, 0, options, device.get()),
                               Side(comm, 1, options, device.get())};
  std::vector<std::unique_ptr<ResultFollower>> followers;  // of the other side
  for (std::size_t p = 0; p < 2; ++p) {
    const std::uint64_t before = held(sides[p].optimizer);
    followers.push_back(std::make_unique<ResultFollower>(sides[p].optimizer, sides[1 - p].layout));
    EXPECT_TRUE(followers[p]->suffices());
    EXPECT_LT(held(sides[p].optimizer), before + sides[1 - p].layout.n_coords());
  }
  for (int step = 0; step < 5; ++step) {
    const bool nan = step == 2 && options.non_finite == NonFinitePolicy::kSkip;
    for (Side& side : sides) {
      side.optimizer.set_group({.lr = 0.1 + step});
      const bool skipped = side.step(comm.rank(), step, nan).skipped;
      EXPECT_EQ(skipped, nan && side.part == 1);
      EXPECT_EQ(side.optimizer.results().empty(), skipped);
    }
    for (Side& side : sides) {
      Optimizer& other = sides[1 - side.part].optimizer;
      const std::uint64_t before = held(other);
      const auto results = side.optimizer.results();
      if (!results.empty()) {
        ResultFollower& follower = *followers[1 - side.part];
        EXPECT_EQ(follower.bytes(), results.size());
        follower.apply(side.seen.tensors, side.flags(), results);
        std::vector<std::byte> damaged(results.begin(), results.end());
        for (std::byte& b : damaged) b = ~b;  // a device may not have read the good ones yet
        EXPECT_THROW(follower.apply(side.seen.tensors, side.flags(), damaged), CommError);
      }
      if (!device) {
        EXPECT_EQ(held(other), before);
      }
      EXPECT_EQ(side.seen.get(), side.x.get()) << "step " << step << ", part " << side.part;
    }
  }
}

std::vector<std::string> followed() {
  std::vector<std::string> all;
  for (const char* sign : {"dlion-vote", "signum-vote"}) {
    for (const char* option : {"", ":tie=zero", ":route=sharded"}) {
      all.push_back(std::string(sign) + option);
    }
  }
  all.insert(all.end(), {"dlion-avg", "dlion-avg:route=sharded", "dlion-avg:counts=planes",
                         "signum-avg", "dlion-vote:momentum_dtype=bfloat16",
                         "lion-cub:bits=1,sync=none", "lion-cub:bits=3,sync=none,tie=zero",
                         "lion-cub:bits=8,sync=none,route=native", "lion-cub:bits=2,sync=none"});
  if (rules::has_blas()) {
    all.insert(all.end(), {"dlion-muon:matrix_scale=rms", "dlion-muon-avg", "turn-muon:turns=4"});
  }
  return all;
}

class Followed : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Methods, Followed, ::testing::ValuesIn(followed()),
                         [](const auto& info) { return testing::test_name(info.param); });

TEST_P(Followed, HasTheBitsOfTheOwner) {
  for (const int world : {1, 2, 3}) {
    for (const std::size_t bucket_coords : {std::size_t{128}, std::size_t{1} << 20}) {
      OptimizerOptions options = options_of(GetParam(), bucket_coords);
      if (world == 3) options.non_finite = NonFinitePolicy::kRaise;  // buckets share their buffers
      run_world(world, [&](Communicator& comm) { follow_each_other(comm, options, nullptr); });
    }
  }
}

TEST_P(Followed, HasTheBitsOfTheOwnerOnADevice) {
  const std::string method = options_of(GetParam(), 1).method;
  if (!method_info(method, 1).on_device) GTEST_SKIP() << "not on devices";
  run_world(2, [&](Communicator& comm) {
    follow_each_other(comm, options_of(GetParam(), 512), std::make_shared<TestDevice>());
  });
}

TEST(Follower, TakesNodesWeightsAndOverlap) {
  for (const char* method : {"dlion-vote", "dlion-avg"}) {
    OptimizerOptions options = options_of(method, 256);
    options.nodes = Nodes::of_size(4, 2);
    options.overlap = true;
    run_world(4, [&](Communicator& comm) {
      OptimizerOptions own = options;
      own.vote_weight = 1 + comm.rank();
      follow_each_other(comm, own, nullptr);
    });
  }
}

TEST(Follower, TakesSections) {
  OptimizerOptions options = options_of("dlion-vote", 256);
  options.groups[1].method = "signum-avg";
  run_world(2, [&](Communicator& comm) {
    follow_each_other(comm, options, nullptr);
    OptimizerOptions other = options;
    other.groups[1].method = "adamw";
    Side own(comm, 0, other, nullptr);
    EXPECT_FALSE(ResultFollower(own.optimizer, Layout(kParts[1])).suffices());
  });
}

// Of all methods with default options: the others have state in common, or apply to it.
TEST(Follower, IsThereWhereResultsSuffice) {
  const std::set<std::string> good = {"dlion-vote", "dlion-avg",   "dlion-muon", "dlion-muon-avg",
                                      "turn-muon",  "signum-vote", "signum-avg"};
  run_world(2, [&](Communicator& comm) {
    const Layout layout(kParts[0]);
    for (const std::string& method : method_names()) {
      Optimizer optimizer(comm, layout, {.method = method, .groups = {{}, {}}});
      EXPECT_EQ(ResultFollower(optimizer, layout).suffices(), good.contains(method)) << method;
    }
  });
}

template <typename Error>
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "not refused";
}

TEST(Follower, RefusesResultsThatAreDamagedOrOfAnotherStep) {
  run_world(2, [](Communicator& comm) {
    const OptimizerOptions options = options_of("dlion-vote:route=sharded", 256);
    Side own(comm, 0, options, nullptr), other(comm, 1, options, nullptr);
    const auto buckets = make_buckets(other.layout, options.bucket_coords, 2);
    ResultFollower of_other(own.optimizer, other.layout), of_own(other.optimizer, own.layout);
    EXPECT_NE(
        refusal<InvalidArgument>([&] { of_other.bytes(); }).find("bytes() before the first step"),
        std::string::npos);
    std::vector<std::byte> before;
    for (int step = 0; step < 2; ++step) {
      before.assign(other.optimizer.results().begin(), other.optimizer.results().end());
      own.step(comm.rank(), step);
      other.step(comm.rank(), step);
    }
    const auto good = other.optimizer.results();
    const auto expect = [&](const std::string& text, std::vector<std::byte> bytes,
                            bool freeze = false) {
      const auto values = other.seen.get();
      const std::array<bool, 2> frozen = {freeze, false};
      const std::string error =
          refusal<CommError>([&] { of_other.apply(other.seen.tensors, frozen, bytes); });
      EXPECT_NE(error.find("results for 'w1' and on, step 2: "), std::string::npos) << error;
      EXPECT_NE(error.find(text), std::string::npos) << error;
      EXPECT_EQ(other.seen.get(), values);
    };
    const std::vector<std::byte> bytes(good.begin(), good.end());
    const auto changed = [&](std::size_t at, int bit) {
      std::vector<std::byte> copy = bytes;
      copy[at] ^= std::byte{1} << bit;
      return copy;
    };
    expect(std::to_string(bytes.size() - 8) + " bytes, must be " + std::to_string(bytes.size()),
           {bytes.begin(), bytes.end() - 8});
    expect("0 bytes, must be ", {});
    expect("vote frames of bucket 0: the frame from rank 0 has magic", changed(0, 1));
    expect("has version", changed(4, 2));
    expect(concat("vote frames of bucket ", buckets.size() - 1,
                  ": the frame from rank 1 has checksum"),
           changed(bytes.size() - 1, 7));
    expect("has step 0, this rank expects 1", before);
    expect("step scalars (lr, betas, weight decay, frozen tensors)", bytes, true);
    std::vector<std::byte> padded = changed(kHeaderBytes + 7, 7);  // sealed by its sender
    const auto n = static_cast<std::ptrdiff_t>(vote_frames(false).bytes(buckets[0].shards[0]));
    testing::Recording first = {{.bytes = {padded.begin(), padded.begin() + n}}};
    testing::reseal(first, {.first = 0});
    std::ranges::copy(first[0].bytes, padded.begin());
    expect("unused bits set after its", padded);

    of_other.apply(other.seen.tensors, {}, bytes);
    EXPECT_NE(other.seen.get(), Side(comm, 1, options, nullptr).seen.get());
  });
}

TEST(Follower, RefusesOtherTensorsDtypesAndCalls) {
  run_world(1, [](Communicator& comm) {
    const OptimizerOptions options = options_of("dlion-vote", 256);
    Side own(comm, 0, options, nullptr), other(comm, 1, options, nullptr);
    std::vector<TensorSpec> named = kParts[1];
    named[0].name = "v1";
    ResultFollower of_named(own.optimizer, Layout(named)), of_own(other.optimizer, own.layout);
    own.step(0, 0);
    other.step(0, 0);
    const auto bytes = other.optimizer.results();
    EXPECT_NE(refusal<CommError>([&] {
                of_named.apply(other.seen.tensors, {}, bytes);
              }).find("results for 'v1' and on, step 1"),
              std::string::npos);
    std::vector<TensorSpec> elsewhere = kParts[1];  // of which turns and random bits depend
    elsewhere[1].first_coord = *elsewhere[1].first_coord + 64;
    ResultFollower of_elsewhere(own.optimizer, Layout(elsewhere));
    EXPECT_NE(refusal<CommError>([&] {
                of_elsewhere.apply(other.seen.tensors, {}, bytes);
              }).find("step scalars"),
              std::string::npos);
    const auto invalid = [&](const std::string& text, const std::function<void()>& body) {
      EXPECT_NE(refusal<InvalidArgument>(body).find(text), std::string::npos) << text;
    };
    std::vector<Tensor> narrow = other.seen.tensors;
    narrow[1].dtype = DType::kBFloat16;
    invalid("parameters in bfloat16, must be float32", [&] { of_named.apply(narrow, {}, bytes); });
    invalid("add() to an optimizer with followers", [&] { own.optimizer.add({{"more", {3}}}); });
    invalid("has 2 groups, the options 1", [&] {
      Optimizer one(comm, Layout({{"a", {3}}}), {});
      ResultFollower(one, Layout({{"b", {3}, 1}}));
    });
    Optimizer mean(comm, own.layout, {.method = "adamw", .groups = {{}, {}}});
    const ResultFollower of_mean(mean, own.layout);
    invalid("results of adamw do not determine the parameters", [&] { (void)of_mean.bytes(); });
    own.optimizer.begin_step(own.x.tensors);
    invalid("results() in the middle of a step", [&] { (void)own.optimizer.results(); });
    invalid("apply() in the middle of a step",
            [&] { of_named.apply(other.seen.tensors, {}, bytes); });
    own.optimizer.finish_step();
  });
}

}  // namespace
}  // namespace pride::follower_test
