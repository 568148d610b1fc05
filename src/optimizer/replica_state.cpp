// Save and load of a replica's state.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "optimizer/replica_impl.h"
#include "optimizer/resharding.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr int kStateVersion = 2;
constexpr const char* kGroupSections = "group sections";

std::string hex(std::uint64_t v) {
  std::ostringstream text;
  text << std::hex << v;
  return text.str();
}

// "route=auto tie=hash": a method's options in the order of their names, without options that
// change no result. Spaces separate them, so lists of words lose theirs.
std::string text_of(const std::map<std::string, std::string>& options, const MethodInfo& info) {
  std::string text;
  for (const auto& [name, value] : options) {
    const auto known = std::ranges::find(info.options, name, &MethodOption::name);
    if (known != info.options.end() && known->wire_only) continue;
    std::string whole = value;
    std::erase_if(whole, [](unsigned char letter) { return std::isspace(letter) != 0; });
    text += concat(text.empty() ? "" : " ", name, "=", whole);
  }
  return text;
}

// The options of a saved state as this version would have saved them: without options that change
// no result now, and with the defaults of newer options.
std::string completed(const std::string& text, const MethodInfo& info) {
  std::map<std::string, std::string> options;
  for (const MethodOption& option : info.options) options[option.name] = option.default_value;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = std::min(word.find('='), word.size());
    options[word.substr(0, equals)] = word.substr(std::min(equals + 1, word.size()));
  }
  return text_of(options, info);
}

const std::string& scalar(const StateDict& state, const std::string& key) {
  const auto found = state.scalars.find(key);
  PRIDE_CHECK(found != state.scalars.end(), "load: the state has no ", key);
  return found->second;
}

void take_masters(StateDict& from, StateDict& to) {
  for (auto at = from.tensors.begin(); at != from.tensors.end();) {
    const auto entry = at++;
    if (!entry->first.starts_with(kMasterKey)) continue;
    to.tensors.insert(from.tensors.extract(entry));
  }
}

// Begins the names of a section's scalars.
std::string prefix_of(std::size_t section) {
  return section == 0 ? "" : concat("section ", section, " ");
}

// "0 1 0": the section of each group; "none" if all have one method.
std::string text_of_groups(const Sections& sections) {
  std::string text;
  for (const std::size_t s : sections.by_group()) text += concat(text.empty() ? "" : " ", s);
  return sections.size() == 1 ? "none" : text;
}

// A state with its options as this version would have saved them.
StateDict of_this_version(StateDict state, const Sections& sections) {
  const std::string& version = scalar(state, "version");
  PRIDE_CHECK(version == std::to_string(kStateVersion), "load: the state has version ", version,
              ", this program reads ", kStateVersion);
  for (std::size_t s = 0; s < sections.size(); ++s) {
    const auto options = state.scalars.find(prefix_of(s) + "options");
    if (options == state.scalars.end()) continue;
    options->second = completed(options->second, sections[s].info);
  }
  state.scalars.try_emplace(kGroupSections, "none");
  return state;
}

// 0 to 10^18. Throws InvalidArgument.
std::int64_t number_in(const StateDict& state, const std::string& key) {
  const std::string& text = scalar(state, key);
  PRIDE_CHECK(!text.empty() && text.size() < 19 &&
                  text.find_first_not_of("0123456789") == std::string::npos,
              "load: the state's ", key, " is '", text, "', not a number");
  return std::stoll(text);
}

// Checks that these are the states of all ranks of one run: their scalars differ only in the rank.
void check_of_one_run(std::span<const StateDict> ranks) {
  std::vector<char> seen(ranks.size(), 0);
  for (const StateDict& state : ranks) {
    const std::int64_t rank = number_in(state, "rank");
    PRIDE_CHECK(number_in(state, "world") == static_cast<std::int64_t>(ranks.size()),
                "load: states of ", ranks.size(), " ranks given, but that of rank ", rank,
                " belongs to a run of ", scalar(state, "world"), " ranks");
    PRIDE_CHECK(rank < static_cast<std::int64_t>(ranks.size()) &&
                    seen[static_cast<std::size_t>(rank)]++ == 0,
                "load: a state of rank ", rank, " given; each rank from 0 to ", ranks.size() - 1,
                " must have exactly one");
    PRIDE_CHECK(state.scalars.size() == ranks[0].scalars.size(), "load: the states of ranks ",
                scalar(ranks[0], "rank"), " and ", rank, " have different scalars");
    for (const auto& [key, value] : ranks[0].scalars) {
      PRIDE_CHECK(key == "rank" || scalar(state, key) == value, "load: the states of ranks ",
                  scalar(ranks[0], "rank"), " and ", rank, " differ in ", key);
    }
  }
}

}  // namespace

std::vector<StateBuffer> Replica::state_buffers() {
  if (!impl_->in_step) {
    impl_->complete();
    impl_->space.before(impl_->options.stream);
  }
  std::vector<StateBuffer> buffers;
  for (std::size_t s = 0; s < impl_->sections.size(); ++s) {
    for (StateBuffer& buffer : impl_->workers.front()[s].method->state().buffers()) {
      buffer.section = static_cast<int>(s);
      buffers.push_back(std::move(buffer));
    }
  }
  return buffers;
}

StateDict Replica::save() const { return impl_->save(0); }

StateDict Replica::Impl::save(std::size_t worker) {
  check_idle("save");
  PRIDE_CHECK(
      refusal.empty() || is_whole,
      "optimizer: save() after a step that failed when a part of it was applied, so that ranks "
      "may differ: go on from the last state that was saved. The step failed because: ",
      refusal);
  complete();
  StateDict state;
  state.scalars = {{"version", std::to_string(kStateVersion)},
                   {"layout", hex(layout.digest())},
                   {"rank", std::to_string(rank() + static_cast<int>(worker))},
                   {"world", std::to_string(world)},
                   {"seed", std::to_string(options.seed)},
                   {"step", std::to_string(steps_done)}};
  std::string& starts = state.scalars["group starts"];
  for (const std::int64_t step : group_starts) starts += concat(starts.empty() ? "" : " ", step);
  if (sections.size() > 1) state.scalars[kGroupSections] = text_of_groups(sections);
  for (std::size_t s = 0; s < sections.size(); ++s) {
    const Section& section = sections[s];
    const StateTable& table = workers[worker][s].method->state();
    StateDict own{.tensors = {}, .scalars = {{"method", section.method}}};
    own.scalars["options"] = text_of(section.options, section.info);
    table.save(section.layout, own);
    state.tensors.merge(own.tensors);
    for (const auto& [key, text] : own.scalars) state.scalars[prefix_of(s) + key] = text;
    if (!table.has(StateKind::kServer)) continue;
    // a larger one makes the same buckets
    state.scalars["bucket size"] =
        std::to_string(std::min(options.bucket_coords, std::max(kAlignment, layout.flat_size())));
  }
  parameters->save(state);
  return state;
}

// The state of each section: its tensors and its scalars. The first one has the rest, too.
Replica::Impl::States Replica::Impl::divide(StateDict state) const {
  States states(sections.size());
  std::map<std::string_view, std::size_t> section_of;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    section_of[layout.tensors()[t].spec.name] = sections.by_tensor()[t].section;
  }
  for (auto at = state.tensors.begin(); at != state.tensors.end();) {
    const auto entry = at++;
    const std::string& key = entry->first;
    const auto found = section_of.find(std::string_view(key).substr(key.find('/') + 1));
    if (found == section_of.end() || found->second == 0) continue;
    states[found->second].tensors.insert(state.tensors.extract(entry));
  }
  for (std::size_t s = 1; s < states.size(); ++s) {
    const std::string prefix = prefix_of(s);
    for (const auto& [key, text] : state.scalars) {
      if (key.starts_with(prefix)) states[s].scalars[key.substr(prefix.size())] = text;
    }
  }
  states[0] = std::move(state);
  return states;
}

// Checks the settings that load() cannot change.
void Replica::Impl::check_same_run(const StateDict& state) const {
  const auto must_be = [&](const std::string& key, const std::string& want) {
    PRIDE_CHECK(scalar(state, key) == want, "load: the state is for ", key, " ", scalar(state, key),
                ", this optimizer has ", want);
  };
  must_be(kGroupSections, text_of_groups(sections));
  must_be("layout", hex(layout.digest()));
  must_be("seed", std::to_string(options.seed));
  for (std::size_t s = 0; s < sections.size(); ++s) {
    const Section& section = sections[s];
    must_be(prefix_of(s) + "method", section.method);
    must_be(prefix_of(s) + "options",
            completed(text_of(section.options, section.info), section.info));
  }
}

// A section's buckets in the optimizer that saved the state.
std::vector<Bucket> Replica::Impl::buckets_of(const StateDict& state, std::size_t section) const {
  const std::int64_t size = number_in(state, "bucket size"), world = number_in(state, "world");
  PRIDE_CHECK(size >= 1 && world >= 1 && world <= kMaxWorld, "load: the state has a world size of ",
              world, ", must be from 1 to ", kMaxWorld, ", and a bucket size of ", size,
              ", must be 1 or more");
  const Protocol protocol = workers.front()[section].method->protocol({.voters = this->world});
  return make_buckets(sections[section].layout, static_cast<std::size_t>(size),
                      static_cast<int>(world), protocol.alignment, protocol.cuts);
}

// Collective: all ranks load their states, or none does. `make` returns a worker's states. It is
// called twice for each worker but the last, so that memory never holds those of two.
void Replica::Impl::load(const std::function<States(std::size_t worker)>& make) {
  before_load();
  States states;
  std::int64_t step = 0;
  std::vector<std::int64_t> starts(groups.size(), 0);
  const std::size_t last = workers.size() - 1;
  const auto for_tables = [&](std::size_t i,
                              void (StateTable::*call)(const Layout&, const StateDict&)) {
    for (std::size_t s = 0; s < sections.size(); ++s) {
      (workers[i][s].method->state().*call)(sections[s].layout, states[s]);
    }
  };
  agree(Call::kLoad, [&] {
    for (std::size_t i = 0; i <= last; ++i) {
      states = make(i);
      for_tables(i, &StateTable::check);
    }
    for (std::size_t s = 1; s < states.size(); ++s) take_masters(states[s], states[0]);
    const StateDict& state = states[0];
    parameters->check(state);
    step = number_in(state, "step");
    if (const auto found = state.scalars.find("group starts"); found != state.scalars.end()) {
      std::istringstream text(found->second);
      bool good = true;
      for (std::int64_t& start : starts) {
        good = good && text >> start && start >= 0 && start <= step;
      }
      std::string more;
      PRIDE_CHECK(good && !(text >> more), "load: the state's group starts are '", found->second,
                  "', must be the first steps of ", groups.size(), " groups");
    }
    const auto size = state.scalars.find("bucket size");
    return Settings{{"step of the state to load", static_cast<std::uint64_t>(step)},
                    {"bucket size of the state to load",
                     size == state.scalars.end() ? 0 : Digest().text(size->second).value()}};
  });
  for_tables(last, &StateTable::load);
  parameters->load(states[0]);
  for (std::size_t i = 0; i < last; ++i) {
    states = make(i);
    for_tables(i, &StateTable::load);
  }
  steps_done = step;
  group_starts = std::move(starts);
  refusal.clear();
  params_checked = false;
  after_load();
}

void Replica::load(const StateDict& saved) {
  impl_->check_between_gradients("load");
  const int rank = impl_->rank(), world = impl_->world;
  PRIDE_CHECK(impl_->workers.size() == 1, "load: one state given; load the states of all ", world,
              " virtual workers, or of all ranks of another run");
  std::map<std::size_t, std::vector<Bucket>> before;  // by section, if it has server state
  impl_->load([&](std::size_t) {
    StateDict state = of_this_version(saved, impl_->sections);
    impl_->check_same_run(state);
    PRIDE_CHECK(number_in(state, "rank") == rank && number_in(state, "world") == world,
                "load: the state is of rank ", scalar(state, "rank"), " of ",
                scalar(state, "world"), ", this is rank ", rank, " of ", world,
                "; load the states of all ranks to continue with another number of ranks");
    for (std::size_t s = 0; s < impl_->sections.size(); ++s) {
      if (impl_->has_server_state(s)) before[s] = impl_->buckets_of(state, s);
    }
    return impl_->divide(std::move(state));
  });
  if (before.empty()) return;
  impl_->refusal = "the servers' state was not moved";  // holds if the move throws
  for (const auto& [section, buckets] : before) impl_->move_server_state(section, buckets);
  impl_->refusal.clear();
}

void Replica::load(std::vector<StateDict> of_all_ranks, LocalState local) {
  impl_->check_between_gradients("load");
  const Sections& sections = impl_->sections;
  std::vector<Impl::States> all(sections.size());  // by section, of all ranks
  std::vector<std::vector<Move>> moves(sections.size());
  impl_->load([&, ready = false](std::size_t worker) mutable {
    if (!std::exchange(ready, true)) {
      PRIDE_CHECK(!of_all_ranks.empty(), "load: no states given");
      for (StateDict& state : of_all_ranks) state = of_this_version(std::move(state), sections);
      check_of_one_run(of_all_ranks);
      impl_->check_same_run(of_all_ranks[0]);
      std::ranges::sort(of_all_ranks, {}, [](const StateDict& s) { return number_in(s, "rank"); });
      for (std::size_t s = 0; s < sections.size(); ++s) {
        if (!impl_->has_server_state(s)) continue;
        moves[s] = moves_between(impl_->buckets_of(of_all_ranks[0], s), sections[s].buckets);
      }
      for (StateDict& state : of_all_ranks) {
        Impl::States divided = impl_->divide(std::move(state));
        for (std::size_t s = 0; s < all.size(); ++s) all[s].push_back(std::move(divided[s]));
      }
    }
    Impl::States mine;
    for (std::size_t s = 0; s < all.size(); ++s) {
      mine.push_back(state_of_rank(impl_->rank() + static_cast<int>(worker), all[s],
                                   sections[s].layout, impl_->workers.front()[s].method->state(),
                                   local, moves[s]));
    }
    return mine;
  });
}

}  // namespace pride
