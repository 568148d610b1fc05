// Whole steps against hostile peers, for every method and route: the peers repeat an honest run,
// with bytes changed as the input says and checksums made true again. The rank either takes the
// step or throws an error that says who was wrong, and then its parameters are as before.
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "fuzz_input.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "support/replayed_peers.h"
#include "support/training.h"

namespace pride::fuzz {
namespace {

using testing::Recording;

constexpr int kSteps = 2;
constexpr std::size_t kLongestMessage = 1 << 16;

// A method in a world, one of whose ranks is under test, and what the others say to it.
struct Scene {
  testing::Training run;
  int here = 0;
  Recording messages;
  std::vector<testing::RecordedFrame> frames;
};

const Layout& layout() {
  static const Layout tensors({{"w", {70}}, {"e", {5, 40}}, {"b", {3}}, {"x", {4100}}});
  return tensors;
}

struct Variant {
  std::string method;
  std::map<std::string, std::string> options = {};
  Nodes nodes = {};
};

Scene scene_of(const Variant& variant, int world, int here, NonFinitePolicy policy) {
  Scene scene{.here = here};
  scene.run.world = world;
  scene.run.steps = kSteps;
  scene.run.options.method = variant.method;
  scene.run.options.options = variant.options;
  scene.run.options.nodes = variant.nodes;
  scene.run.options.non_finite = policy;
  scene.run.options.bucket_coords = 4096;
  scene.run.unused = [](int rank, std::int64_t step, std::size_t tensor) {
    return tensor == 2 && (rank == 1 || step == 1);
  };
  scene.messages = testing::record(
      world, here, [&](Communicator& comm) { testing::train_rank(comm, layout(), scene.run); });
  scene.frames = testing::frames_of(scene.messages);
  return scene;
}

// Options that change what is sent, and the defaults of every method.
std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const std::string& method : method_names()) {
    all.push_back({method});
    for (const MethodOption& option : method_info(method, 2).options) {
      if (option.name == "tie") all.push_back({method, {{"tie", "zero"}}});
      if (option.name == "dense") {
        all.push_back({method, {{"dense", "native"}}});
        all.push_back({method, {{"dense", "bf16"}}});
      }
      if (option.name == "freeze_steps") all.push_back({method, {{"freeze_steps", "1"}}});
      if (option.name == "bandwidth_delay_bytes") {  // the methods that send signs
        all.push_back({method, {{"route", "sharded"}}});
        all.push_back({method, {{"route", "one-shot"}}});
      }
      if (option.name != "route" || !method.starts_with("lion-cub")) continue;
      // all that lion-cub can send, by both routes
      all.push_back({method, {{"route", "sharded"}, {"sync_every", "1"}}});
      all.push_back({method, {{"route", "native"}, {"sync_every", "2"}, {"sync_format", "bf16"}}});
    }
  }
  return all;
}

// Signs on two nodes of two ranks: votes, counts in both forms.
std::vector<Variant> hierarchical_variants() {
  const Nodes nodes = Nodes::of_size(4, 2);
  return {{"dlion-vote", {}, nodes},
          {"signum-vote", {{"tie", "zero"}}, nodes},
          {"dlion-avg", {}, nodes},
          {"signum-avg", {{"counts", "planes"}}, nodes}};
}

const std::vector<Scene>& scenes() {
  static const std::vector<Scene> all = [] {
    std::vector<Scene> made;
    for (const Variant& variant : variants()) {
      made.push_back(scene_of(variant, 2, 0, NonFinitePolicy::kSkip));
      made.push_back(scene_of(variant, 3, 2, NonFinitePolicy::kRaise));
    }
    for (const Variant& variant : hierarchical_variants()) {
      made.push_back(scene_of(variant, 4, 0, NonFinitePolicy::kSkip));
      made.push_back(scene_of(variant, 4, 3, NonFinitePolicy::kRaise));
    }
    return made;
  }();
  return all;
}

// One change: a number written over, or mixed into, a message; two bits turned over; another size.
enum Kind : std::uint8_t { kSealed = 1, kMix = 2, kResize = 4, kAnyMessage = 8, kTurn = 16 };
struct Change {
  std::uint8_t message = 0, kind = 0, width = 0;
  std::uint16_t at = 0;
  std::uint64_t value = 0;
};

Change next_change(Input& input) {
  Change c;
  c.message = input.number<std::uint8_t>();
  c.kind = input.number<std::uint8_t>() ^ kSealed;
  c.width = input.number<std::uint8_t>();
  c.at = input.number<std::uint16_t>();
  c.value = input.number<std::uint64_t>();
  return c;
}

void change_bytes(const Change& c, std::vector<std::byte>& bytes) {
  if ((c.kind & kResize) != 0) bytes.resize(c.value % kLongestMessage);
  if ((c.kind & kTurn) != 0) {
    const std::size_t from = bytes.size() > kHeaderBytes ? kHeaderBytes : 0;
    return turn_two_bits(std::span(bytes).subspan(from), static_cast<std::uint32_t>(c.value),
                         static_cast<std::uint32_t>(c.value >> 32));
  }
  const std::size_t width = std::size_t{1} << (c.width % 4);
  if (bytes.size() < width) return;
  const std::size_t at = c.at % (bytes.size() - width + 1);
  const bool mix = (c.kind & kMix) != 0;
  const std::uint64_t old = mix ? testing::number_at(bytes, at, width) : 0;
  testing::put_number(bytes, at, width, old ^ c.value);
}

void apply_change(const Change& c, const Scene& scene, Recording& messages) {
  if ((c.kind & kAnyMessage) != 0 || scene.frames.empty()) {
    return change_bytes(c, messages[c.message % messages.size()].bytes);
  }
  const auto& frame = scene.frames[c.message % scene.frames.size()];
  // the high bits of `width` choose the part of the frame
  const bool second = frame.second != testing::RecordedFrame::kNone && c.width >= 128;
  change_bytes(c, messages[second ? frame.second : frame.first].bytes);
  if ((c.kind & kSealed) != 0) testing::reseal(messages, frame);
}

// One step; true if it was taken or skipped.
bool step(Optimizer& optimizer, const Scene& scene, std::int64_t number, FlatBuffer& params,
          const FlatBuffer& grads) {
  const std::vector<float> before(params.span().begin(), params.span().end());
  const auto unchanged = [&] {
    return std::memcmp(before.data(), params.span().data(), 4 * before.size()) == 0;
  };
  const bool held = scene.run.options.non_finite == NonFinitePolicy::kSkip;
  bool unused[4] = {};
  for (std::size_t t = 0; t < 4; ++t) unused[t] = scene.run.unused(scene.here, number, t);
  try {
    const StepReport report = optimizer.step(params.span(), grads.span(), unused);
    must(!report.skipped || unchanged(), "a skipped step changed parameters");
    return true;
  } catch (const NonFiniteGradient& e) {
    must(contains(e.what(), "gradient"), concat("what went wrong? ", e.what()));
  } catch (const CommError& e) {
    must(contains(e.what(), "rank"), concat("who was wrong? ", e.what()));
  } catch (const InvalidArgument& e) {
    // a peer's call, or its hash of the parameters, before anything else
    must(contains(e.what(), "the parameters of rank(s) ") ||
             contains(e.what(), "all ranks must make the same call: rank(s) "),
         concat("who was wrong? ", e.what()));
    must(unchanged(), "a step that was not begun changed parameters");
    return false;
  }
  must(!held || unchanged(), "a step that failed changed parameters");
  try {
    optimizer.step(params.span(), grads.span(), unused);
    must(false, "a step after one that failed");
  } catch (const InvalidArgument&) {
  }
  return false;
}

void run_scene(const Scene& scene, const Recording& messages, bool honest) {
  testing::ReplayComm comm(scene.here, scene.run.world, messages);
  FlatBuffer params(layout().flat_size()), grads(layout().flat_size());
  testing::fill(layout(), params, testing::initial);
  std::unique_ptr<Optimizer> optimizer;
  try {
    optimizer = std::make_unique<Optimizer>(comm, layout(), scene.run.options);
  } catch (const Error& e) {
    must(contains(e.what(), "rank"), concat("who was wrong? ", e.what()));
    return must(!honest, concat("honest peers are refused: ", e.what()));
  }
  for (std::int64_t number = 0; number < kSteps; ++number) {
    testing::fill(layout(), grads, [&](std::size_t t, std::size_t i) {
      return testing::gradient(scene.here, number, t, i);
    });
    if (!step(*optimizer, scene, number, params, grads)) {
      return must(!honest, "honest peers are refused");
    }
  }
}

void one_input(Input input) {
  const Scene& scene = scenes()[input.below(scenes().size())];
  const bool honest = input.empty();
  Recording messages = scene.messages;
  for (int n = 0; n < 8 && !input.empty(); ++n) {
    apply_change(next_change(input), scene, messages);
  }
  run_scene(scene, messages, honest);
}

}  // namespace
}  // namespace pride::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  pride::fuzz::scenes();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pride::fuzz::one_input({data, size});
  return 0;
}
