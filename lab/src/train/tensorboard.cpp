// The observer that writes event files of TensorBoard: scalars by step, in the TFRecord framing. By
// hand, since two message types and a checksum need no library.
// Formats: tensorflow/core/lib/io/record_writer.h (framing), core/util/event.proto and
// core/framework/summary.proto (messages).
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "pride/error.h"
#include "pride/train/observer.h"
#include "program/io/growing_file.h"
#include "train/run_folder.h"

namespace pride::train {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are written in the machine's byte order");

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr const char* kMark = ".tfevents.";

// wire types of protocol buffers
enum : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr auto kTable = crc_table();

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

template <typename Number>
std::string raw(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(std::uint64_t field, std::uint64_t type) { return varint(field << 3 | type); }

std::string bytes_field(std::uint64_t field, const std::string& bytes) {
  return key(field, kBytes) + varint(bytes.size()) + bytes;
}

// Event { double wall_time = 1; int64 step = 2; ... }
std::string event(std::int64_t step, const std::string& what) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return key(1, kFixed64) + raw(std::chrono::duration<double>(now).count()) + key(2, kVarint) +
         varint(static_cast<std::uint64_t>(step)) + what;
}

// Summary.Value { string tag = 1; float simple_value = 2; }
std::string scalar(const std::string& tag, double value) {
  return bytes_field(1, tag) + key(2, kFixed32) + raw(static_cast<float>(value));
}

std::string host() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// "events.out.tfevents.SECONDS.HOST.PROCESS.NUMBER"; TensorBoard reads them in this order
fs::path fresh_file(const fs::path& folder) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  for (int number = 0;; ++number) {
    fs::path file =
        folder / concat("events.out", kMark, seconds, ".", host(), ".", getpid(), ".", number);
    if (!fs::exists(file)) return file;
  }
}

// CRC-32C (Castagnoli), not masked.
std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

class Events final : public Observer {
 public:
  void on_start(const TrainPlan& plan, const RunStart& start) override {
    const TrainOptions& o = plan.options;
    PRIDE_CHECK(!o.tensorboard.empty(), "tensorboard_events: options.tensorboard names no folder");
    if (o.resume.empty() && o.overwrite) {
      for (const fs::path& file : event_files_in(o.tensorboard)) fs::remove(file);
    }
    file_ = fresh_file(o.tensorboard);
    out_.open(file_);
    record(event(0, bytes_field(3, "brain.Event:2")));  // file_version
    if (start.step > 0) {
      // SessionLog { START = 1 }: later steps of earlier files are void
      record(event(start.step + 1, bytes_field(7, key(1, kVarint) + varint(1))));
    }
  }

  void on_step(const WorldStep& step) override {
    const StageTimes seconds = step.max_seconds();
    Scalars scalars = {{"train/loss", step.mean_loss()},
                       {"train/lr", step.lr},
                       {"bytes/sent", static_cast<double>(step.max_bytes_sent())},
                       {"bytes/received", static_cast<double>(step.max_bytes_received())}};
    for (const auto& [name, stage] : kStages) {
      scalars.emplace_back(concat("ms/", name), seconds.*stage * 1e3);
    }
    if (step.grad_norm) scalars.emplace_back("train/grad_norm", *step.grad_norm);
    write(step.step, scalars);
  }

  void on_eval(std::int64_t step, const Facts& metrics, double) override {
    Scalars scalars;
    for (const auto& fact : metrics) {
      if (fact.second.index() <= 1) {  // a number
        scalars.emplace_back("eval/" + fact.first, number_of(metrics, fact.first));
      }
    }
    write(step, scalars);
  }

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;  // tag, value

  // Flushed when it returns: a killed run leaves complete records.
  void write(std::int64_t step, const Scalars& scalars) {
    std::string summary;
    for (const auto& [tag, value] : scalars) summary += bytes_field(1, scalar(tag, value));
    record(event(step, bytes_field(5, summary)));
  }

  // uint64 length, its checksum, the bytes, their checksum
  void record(const std::string& event) {
    const std::string length = raw(static_cast<std::uint64_t>(event.size()));
    out_.add(length + raw(masked(crc32c(length))) + event + raw(masked(crc32c(event))));
  }

  fs::path file_;
  GrowingFile out_;
};

}  // namespace

std::vector<fs::path> event_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::is_directory(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const bool is_one = entry.path().filename().string().find(kMark) != std::string::npos;
    if (is_one && entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

std::shared_ptr<Observer> tensorboard_events() { return std::make_shared<Events>(); }

}  // namespace pride::train
