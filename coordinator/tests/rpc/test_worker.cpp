// A worker of `pride serve` with made-up gradients and without a model, for tests that kill it:
// trains until a round of the run, and says the hash of the parameters.
// SPDX-License-Identifier: Apache-2.0
//
// usage: test_worker HOST:PORT NAME ROUNDS|@FILE [certs=DIR] [secret=FILE] [coords=N] [pause_ms=N]
//                    [method=NAME] [patience_s=N] [weight=N]
//                    [steady=1]
// steady: the gradients of its first step in all, so that little but rounds takes time.
// @FILE: a file that says the round, and may be changed until then.
// First line: what it received until it had joined. Last line: JSON with hash, rounds, votes that
// were counted, replayed records, bytes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "pride/comm/thread_comm.h"
#include "pride/coord/client.h"
#include "pride/error.h"
#include "pride/optimizer.h"
#include "pride/random_bits.h"
#include "pride/run_worker.h"

namespace {

using Settings = std::map<std::string, std::string>;

// What became of the rounds that this process was at.
struct Tally {
  long counted = 0, late = 0, replayed = 0, took_parameters = 0;
};

long number(const Settings& settings, const std::string& name, long otherwise) {
  const auto found = settings.find(name);
  return found == settings.end() ? otherwise : std::stol(found->second);
}

std::string text(const Settings& settings, const std::string& name, const std::string& otherwise) {
  const auto found = settings.find(name);
  return found == settings.end() ? otherwise : found->second;
}

// Of a bowl whose middle lies elsewhere for each worker, with noise.
void fill_gradients(const std::vector<float>& params, std::uint64_t worker, std::int64_t step,
                    std::vector<float>& grads) {
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const std::uint64_t bits =
        pride::mix64(pride::mix64(worker, static_cast<std::uint64_t>(step)), i);
    const std::uint64_t middle = pride::mix64(99, i);
    const auto unit = [](std::uint64_t h) { return static_cast<float>(h >> 40) * 0x1p-23f - 1; };
    grads[i] = params[i] - unit(middle) + unit(bits);
  }
}

void count(const pride::StepReport& report, Tally& tally) {
  if (!report.round) return;
  (report.round->counted ? tally.counted : tally.late) += 1;
  tally.replayed += report.round->replayed;
  tally.took_parameters += report.round->took_parameters ? 1 : 0;
}

std::int64_t read_rounds(const std::string& word) {
  if (!word.starts_with('@')) return std::stol(word);
  std::ifstream in(word.substr(1));
  std::int64_t rounds = std::numeric_limits<std::int64_t>::max();
  in >> rounds;
  return rounds;
}

void train(const std::string& host_port, const std::string& name, const std::string& rounds,
           const Settings& settings) {
  pride::CoordinatorAddress address;
  address.host_port = host_port;
  address.name = name;
  address.certificates = text(settings, "certs", "");
  address.secret_file = text(settings, "secret", "");
  address.patience = std::chrono::seconds(number(settings, "patience_s", 60));
  pride::OptimizerOptions options;
  pride::RunWorkerOptions run;
  options.method = text(settings, "method", "dlion-vote");
  options.groups[0].lr = 0.01;
  options.vote_weight = static_cast<int>(number(settings, "weight", 1));
  options.bucket_coords = std::size_t{1} << 16;
  if (settings.contains("steps")) {
    run.settings = pride::concat("steps=", settings.at("steps"), "\n");
  }
  const auto client = pride::connect_coordinator(address);
  std::vector<float> params;
  double loss = 0;
  run.report_loss = [&] { return std::optional<double>(loss); };
  const std::int64_t coords = number(settings, "coords", 20'000);
  pride::RunWorker optimizer(client, pride::Layout({{"w", {coords}}}), options, run);
  params.assign(optimizer.layout().flat_size(), 0);
  std::vector<float> grads(params.size());
  optimizer.join(params);
  std::printf("joined after %llu bytes\n",
              static_cast<unsigned long long>(client->traffic().bytes_received));
  std::fflush(stdout);
  Tally tally;
  const bool steady = number(settings, "steady", 0) != 0;
  long steps = 0;
  const auto pause = std::chrono::milliseconds(number(settings, "pause_ms", 0));
  const auto end = [&] {
    const std::int64_t last = client->length().last_step;
    return last > 0 ? std::min(last, read_rounds(rounds)) : read_rounds(rounds);
  };
  while (optimizer.steps_done() < end()) {
    if (!steady || steps++ == 0) {
      fill_gradients(params, static_cast<std::uint64_t>(optimizer.number()), optimizer.steps_done(),
                     grads);
      std::fill(grads.begin() + coords, grads.end(), 0.f);  // padding
      loss = 0;
      for (const float g : grads) loss += g * g / static_cast<double>(coords);
    }
    std::this_thread::sleep_for(pause);
    count(optimizer.step(params, grads), tally);
  }
  const pride::Traffic traffic = client->traffic();
  std::printf(
      "{\"hash\": \"%016llx\", \"rounds\": %lld, \"counted\": %ld, \"late\": %ld, \"replayed\": "
      "%ld, "
      "\"took_parameters\": %ld, \"sent\": %llu, \"received\": %llu}\n",
      static_cast<unsigned long long>(pride::param_hash(optimizer.layout(), params)),
      static_cast<long long>(optimizer.steps_done()), tally.counted, tally.late, tally.replayed,
      tally.took_parameters, static_cast<unsigned long long>(traffic.bytes_sent),
      static_cast<unsigned long long>(traffic.bytes_received));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: test_worker HOST:PORT NAME ROUNDS [key=value]...\n";
    return 2;
  }
  try {
    Settings settings;
    for (int i = 4; i < argc; ++i) {
      const std::string word = argv[i];
      const auto equals = word.find('=');
      settings[word.substr(0, equals)] = word.substr(equals + 1);
    }
    train(argv[1], argv[2], argv[3], settings);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "test_worker: " << error.what() << '\n';
    return 1;
  }
}
