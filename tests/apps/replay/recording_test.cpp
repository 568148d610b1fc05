// Recordings: parsing, and refusals, by hand-written tensors.
// SPDX-License-Identifier: Apache-2.0
#include "replay/recording.h"

#include <gtest/gtest.h>

#include <numeric>

#include "apps/io/temp_folder.h"
#include "pride/error.h"

namespace pride::app {
namespace {

using test::expect_error;
using Tensors = std::map<std::string, SafeTensor>;

// A tensor with the values 1, 2, 3, ...
SafeTensor counting(std::vector<std::int64_t> shape, const std::string& dtype = "F32") {
  const std::int64_t n =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  SafeTensor tensor{.dtype = dtype, .shape = std::move(shape), .values = {}};
  tensor.values.resize(static_cast<std::size_t>(n));
  std::iota(tensor.values.begin(), tensor.values.end(), 1.0F);
  return tensor;
}

void refuse(const Tensors& tensors, std::initializer_list<std::string_view> parts) {
  expect_error<DataError>([&] { make_recording("in.safetensors", tensors); }, parts);
}

TEST(Recording, PairsParametersAndGradients) {
  const Recording recording = make_recording("f", {{"param.b", counting({2})},
                                                   {"grad.b", counting({3, 2, 2})},
                                                   {"param.a", counting({})},
                                                   {"grad.a", counting({3, 2})}});
  EXPECT_EQ(recording.steps, 3);
  EXPECT_EQ(recording.workers, 2);
  const Layout layout = recording.layout([](const std::string& name) { return name == "b"; });
  ASSERT_EQ(layout.tensors().size(), 2U);
  EXPECT_EQ(layout.tensors()[0].spec.name, "a");
  EXPECT_EQ(layout.tensors()[0].spec.group, 0);
  EXPECT_EQ(layout.tensors()[1].spec.group, 1);
  std::vector<float> flat(layout.flat_size());
  recording.copy_params(layout, flat);
  EXPECT_EQ(flat[0], 1.0F);
  EXPECT_EQ(flat[layout.tensors()[1].offset + 1], 2.0F);
  // step 1, worker 1 is the fourth row: a holds 4, b holds 7 and 8
  recording.copy_grads(layout, 1, 1, flat);
  EXPECT_EQ(flat[0], 4.0F);
  EXPECT_EQ(flat[layout.tensors()[1].offset], 7.0F);
  EXPECT_EQ(flat[layout.tensors()[1].offset + 1], 8.0F);
}

TEST(Recording, RefusesOtherTensors) {
  refuse({}, {"in.safetensors", "no tensors"});
  for (const char* name : {"weight", "params.a", "param.", "grad.", "gradient.a", "param"}) {
    refuse({{name, counting({1})}}, {concat("\"", name, "\" is neither")});
  }
}

TEST(Recording, RefusesTensorsWithoutPartner) {
  refuse({{"param.a", counting({1})}}, {"\"param.a\" is there, \"grad.a\" is missing"});
  refuse({{"grad.a", counting({1, 1, 1})}}, {"\"grad.a\" is there, \"param.a\" is missing"});
}

TEST(Recording, RefusesOtherDtypes) {
  refuse({{"param.a", counting({1}, "F64")}, {"grad.a", counting({1, 1, 1})}},
         {"\"param.a\" has dtype F64, expected F32"});
  refuse({{"param.a", counting({1})}, {"grad.a", counting({1, 1, 1}, "BF16")}},
         {"\"grad.a\" has dtype BF16"});
}

TEST(Recording, RefusesGradientsOfAnotherShape) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{}, {4}, {1, 1}, {1, 1, 3, 2}, {1, 1, 6}}) {
    refuse({{"param.a", counting({2, 3})}, {"grad.a", counting(shape)}},
           {"\"grad.a\" has shape", "before the parameter's [2, 3]"});
  }
}

TEST(Recording, RefusesDifferingStepsOrWorkers) {
  const Tensors one = {{"param.a", counting({1})}, {"grad.a", counting({2, 3, 1})}};
  for (const std::int64_t steps : {1, 2}) {
    Tensors two = one;
    two["param.b"] = counting({1});
    two["grad.b"] = counting({steps, steps == 2 ? 2 : 3, 1});
    refuse(two, {"\"grad.b\" has", "those before it 2 of 3"});
  }
}

TEST(Recording, RefusesWorldsThatCannotBe) {
  refuse({{"param.a", counting({1})}, {"grad.a", counting({2, 0, 1})}}, {"has 0 workers"});
  refuse({{"param.a", counting({0})}, {"grad.a", counting({1, 1025, 0})}},
         {"has 1025 workers, expected 1 to 1024"});
}

}  // namespace
}  // namespace pride::app
