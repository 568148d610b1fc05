// Sections: an optimizer has one for each method that its groups name. To its method the tensors of
// a section are a whole layout, so a section's steps have the bits of an optimizer of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bucket.h"
#include "methods/method.h"
#include "optimizer/bucket_step.h"
#include "pride/replica.h"

namespace pride {

// The groups that name one method with the same options.
struct Section {
  std::string method;
  std::map<std::string, std::string> options;  // all that the method has
  MethodInfo info;
  std::vector<int> groups;           // ascending; not empty
  const Layout* all;                 // the optimizer's
  std::vector<std::size_t> tensors;  // those of the section, ascending
  Layout layout;                     // of these; the optimizer's coordinates key their random bits
  std::vector<Bucket> buckets = {};  // their indices count the buckets of all sections

  bool has_all_tensors() const noexcept { return tensors.size() == all->tensors().size(); }

  // What the optimizer has for all tensors, for the section's. `room` keeps addresses.
  View view(View all, std::vector<ParameterPlace>& room) const;
  std::vector<char> flags(std::span<const char> of_all) const;
  // The opposite: a flag's tensor as a number in the optimizer's layout.
  NonFinite in_all(NonFinite flag) const;
};

// A worker's method of a section, and the inputs of its step.
struct SectionStep {
  SectionStep(const Section& of, std::unique_ptr<Method> its_method, Space& space)
      : section(&of), method(std::move(its_method)), buckets(*method, of.buckets, space) {}

  bool is_local() const noexcept { return method->local() != nullptr; }
  // Sets a flag of the flight, if its wire `part` has one, with the tensor's number in the
  // optimizer's layout.
  void take_flag(Flight& flight, std::size_t part) const;

  const Section* section;
  std::unique_ptr<Method> method;
  BucketStep buckets;

  // of the current step
  StepContext ctx;
  Protocol protocol;
  View x;
  GradientView grads;
  std::vector<GradientPlace> gradients;  // addresses, by tensor
  std::vector<char> unused, frozen;      // by tensor; frozen: empty: none
};

class Sections {
 public:
  struct Place {
    std::size_t section = 0, index = 0;  // of a tensor or bucket in the section
  };

  // In the order of their first groups. `layout` must outlive this object. Throws InvalidArgument.
  Sections(const Layout& layout, const OptimizerOptions& options, int world);
  Sections(const Sections&) = delete;
  Sections& operator=(const Sections&) = delete;

  // A worker's steps, by section. The first call cuts the layouts into buckets.
  std::vector<SectionStep> make_steps(const OptimizerOptions& options, int world, Space& space);
  // Cuts the sections' layouts into buckets. Those of all sections are numbered in the order in
  // which backward completes them.
  void cut(std::span<const SectionStep> steps, std::size_t bucket_coords, int world);

  std::size_t size() const noexcept { return sections_.size(); }
  const Section& operator[](std::size_t i) const { return sections_[i]; }
  auto begin() const noexcept { return sections_.begin(); }
  auto end() const noexcept { return sections_.end(); }
  const Section& of_group(int group) const {
    return sections_[of_group_[static_cast<std::size_t>(group)]];
  }

  const std::vector<std::size_t>& by_group() const noexcept { return of_group_; }
  const std::vector<Place>& by_tensor() const noexcept { return of_tensor_; }
  const std::vector<Place>& by_bucket() const noexcept { return of_bucket_; }

 private:
  void check(const Section& section, const OptimizerOptions& options, int world) const;

  std::vector<std::size_t> of_group_;
  std::vector<Place> of_tensor_, of_bucket_;
  std::vector<Section> sections_;  // methods keep references to their layouts
};

}  // namespace pride
