// SPDX-License-Identifier: Apache-2.0
#include "device/job_cases.h"

#include "device/job_maker.h"

namespace pride {
namespace {

using namespace device;

// Members are drawn in the order of their declarations, so that host and device get equal bits.
Narrow narrow(JobMaker& make) {
  Narrow job{};
  job.values = make.halves(kFloat16);
  job.master = make.floats();
  job.n = make.n;
  return job;
}

ApplyCounts apply_counts_job(JobMaker& make) {
  ApplyCounts job{};
  job.n_planes = 1 + make.word() % 4;
  job.stride = (make.n + 63) / 64 + make.word() % 3;
  job.planes = make.words(job.n_planes * job.stride);
  job.x = make.parameters();
  job.n = make.n;
  job.rate = make.rate();
  job.present = job.world = (1 << job.n_planes) - 1;
  return job;
}

ApplyPacked apply_packed_job(JobMaker& make) {
  ApplyPacked job{};
  job.n_digits = 2 + make.word() % 12;
  job.first_word = make.word() % 50;
  const std::size_t groups = (job.first_word + make.n / 64) / job.n_digits + 1;
  job.packed = reinterpret_cast<const u32*>(make.words(32 * groups));
  job.x = make.parameters();
  job.n = make.n;
  job.rate = make.rate();
  job.present = job.world = 4;
  job.base = 5;
  return job;
}

AdamW adamw_job(JobMaker& make) {
  AdamW job{};
  job.g = make.values();
  job.m = make.floats();
  job.v = make.positive_floats();
  job.x = make.parameters();
  job.n = make.n;
  job.betas = make.betas();
  job.step_size = 0.003f, job.sqrt_bias2 = 0.7f, job.eps = 1e-8f, job.decay = 0.999f;
  job.guard = make.guard();
  return job;
}

SgdMomentum sgd_job(JobMaker& make) {
  SgdMomentum job{};
  job.g = make.values();
  job.m = make.floats();
  job.x = make.parameters();
  job.n = make.n;
  job.rate = make.rate();
  job.momentum = 0.9f;
  job.nesterov = make.word() % 2;
  job.guard = make.guard();
  return job;
}

ApplySigns apply_signs_job(JobMaker& make) {
  ApplySigns job{};
  job.positive = make.bits();
  job.nonzero = make.word() % 2 == 0 ? make.bits() : nullptr;
  job.x = make.parameters();
  job.n = make.n;
  job.rate = make.rate();
  return job;
}

// Blocks of coordinates with one scale each: `n` blocks, the first begins `lead` before the job.
struct Blocks {
  u64 lead, n;
};
Blocks blocks(JobMaker& make) {
  const u64 lead = make.word() % 64 * 64;
  return {lead, (lead + make.n + kScaleBlock - 1) / kScaleBlock};
}
Feedback feedback(JobMaker& make) {
  if (make.word() % 2 == 0) return {0.9f, 1, 0.0137f};
  return {0.9f, 0.1f, 1};
}

Compress compress_job(JobMaker& make) {
  Compress job{};
  const Blocks of = blocks(make);
  job.g = make.word() % 4 == 0 ? Values{nullptr, kFloat32, 1, nullptr} : make.broken_values();
  job.m = make.floats();
  job.e = make.floats();
  job.bits = make.bits();
  job.scales = make.floats(of.n);
  job.size = make.n, job.lead = of.lead, job.n = kChunk * of.n;
  job.f = feedback(make);
  job.zeros = make.hash();
  job.squares = make.word() % 2;
  job.fault = make.fault();
  return job;
}

KeepFeedback keep_feedback_job(JobMaker& make) {
  KeepFeedback job{};
  const Blocks of = blocks(make);
  job.g = make.word() % 4 == 0 ? Values{nullptr, kFloat32, 1, nullptr} : make.values();
  job.bits = make.bits();
  job.scales = make.floats(of.n);
  job.m = make.floats();
  job.e = make.floats();
  job.n = make.n, job.lead = of.lead;
  job.f = feedback(make);
  return job;
}

ApplyScaled apply_scaled_job(JobMaker& make) {
  ApplyScaled job{};
  const Blocks of = blocks(make);
  job.bits = make.bits();
  job.scales = make.floats(of.n);
  job.x = make.parameters();
  job.n = make.n, job.lead = of.lead;
  job.decay = 0.999f;
  return job;
}

Lines lines(JobMaker& make, u32 bits) {
  const u64 words = (make.n + 63) / 64, first = make.word() % 20;
  const u64 n_words = first + words + make.word() % 20;
  return {make.words(n_words * bits), first, n_words, bits};
}
u32 width_of_sums(JobMaker& make) {
  const u32 widths[4] = {0, 1, 2, 4};
  return widths[make.word() % 4];
}

Measure measure_job(JobMaker& make) {
  Measure job{};
  const u64 lead = make.word() % 64 * 64;
  const bool sums = make.word() % 2 == 0;
  job.g = make.values();
  job.m = make.floats();
  job.e = make.word() % 2 == 0 ? make.floats() : nullptr;
  job.length = make.n, job.lead = sums ? 0 : lead;
  const u64 parts = (job.length + job.lead + kScaleBlock - 1) / kScaleBlock;
  job.sums = sums ? reinterpret_cast<double*>(make.words(parts)) : nullptr;
  job.steps = sums ? nullptr : make.floats(parts);
  job.n = kChunk * parts;
  job.beta1 = 0.9f, job.one_minus_beta1 = 0.1f;
  job.what = make.word() % 3;
  job.largest = 7;
  return job;
}

Levels levels_job(JobMaker& make) {
  Levels job{};
  job.g = make.broken_values();
  job.m = make.floats();
  job.e = make.word() % 2 == 0 ? make.floats() : nullptr;
  const bool blocks = make.word() % 2 == 0;
  job.length = blocks ? kScaleBlock : make.n;
  job.first = blocks ? make.word() % kScaleBlock : 0;
  job.steps = make.floats((job.first + make.n) / job.length + 1);
  job.next = job.e != nullptr ? make.floats() : nullptr;
  job.n = make.n;
  job.width = width_of_sums(make);
  job.lines = lines(make, 2 + make.word() % 7);
  job.integers = make.words((make.n * job.width + 7) / 8);
  job.betas = make.betas();
  job.fault = make.fault();
  return job;
}

// Rounds n up to a multiple of 64.
LevelValues level_values_job(JobMaker& make) {
  LevelValues job{};
  make.n = (make.n + 63) / 64 * 64;
  job.values = make.floats();
  job.scales = make.floats(make.n / 64);
  job.n = make.n;
  job.lines = lines(make, 2 + make.word() % 7);
  job.fault = make.fault();
  return job;
}

template <typename Job>
void append(Jobs& jobs, const Job& job) {
  const auto bytes = std::as_bytes(std::span(&job, 1));
  jobs.bytes.insert(jobs.bytes.end(), bytes.begin(), bytes.end());
  jobs.first.push_back(jobs.first.back() + (job.n + kChunk - 1) / kChunk);
}

// Braced lists are evaluated from left to right, so the order of draws is fixed.
void append_job(Kernel kernel, JobMaker& make, Jobs& jobs) {
  const u64 n = make.n;
  switch (kernel) {
    case Kernel::k_widen:
      return append(jobs, Widen{make.values(), make.floats(), n});
    case Kernel::k_copy:
      return append(jobs, Copy{make.parameters(), make.parameters(), n, 0, 0});
    case Kernel::k_publish:
    case Kernel::k_adopt:
      return append(jobs, narrow(make));
    case Kernel::k_lion_signs:
      return append(jobs, LionSigns{make.broken_values(), make.momenta(), make.bits(), n,
                                    make.betas(), make.cells(), make.fault()});
    case Kernel::k_lion_blend:
      return append(jobs, LionBlend{make.broken_values(), make.momenta(), make.floats(), n,
                                    make.betas(), make.fault(), make.guard()});
    case Kernel::k_pack_signs:
      return append(
          jobs, PackSigns{make.floats(), make.bits(), n, make.cells(), make.guard(), make.fault()});
    case Kernel::k_cell_bits:
      return append(jobs, CellBits{make.cells(), make.bits(), n});
    case Kernel::k_apply_signs:
      return append(jobs, apply_signs_job(make));
    case Kernel::k_apply_counts:
      return append(jobs, apply_counts_job(make));
    case Kernel::k_apply_packed:
      return append(jobs, apply_packed_job(make));
    case Kernel::k_scale:
      return append(jobs, Scale{make.parameters(), n, 0.37f});
    case Kernel::k_sum:
      return append(jobs, Sum{make.parameters(), make.floats(), make.parameters(), n});
    case Kernel::k_set:
      return append(jobs, Set{make.floats(), n, 0.25f, make.guard()});
    case Kernel::k_any:
      return append(jobs, Any{make.floats(), n, make.fault()});
    case Kernel::k_check:
      return append(jobs, Check{make.broken_values(), n, make.fault()});
    case Kernel::k_adamw:
      return append(jobs, adamw_job(make));
    case Kernel::k_dense_lion:
      return append(jobs, DenseLion{make.values(), make.momenta(), make.parameters(), n,
                                    make.betas(), make.rate(), make.guard()});
    case Kernel::k_sgd_momentum:
      return append(jobs, sgd_job(make));
    case Kernel::k_compress:
      return append(jobs, compress_job(make));
    case Kernel::k_keep_feedback:
      return append(jobs, keep_feedback_job(make));
    case Kernel::k_apply_scaled:
      return append(jobs, apply_scaled_job(make));
    case Kernel::k_measure:
      return append(jobs, measure_job(make));
    case Kernel::k_levels:
      return append(jobs, levels_job(make));
    case Kernel::k_write_values:
    case Kernel::k_read_values:
      return append(jobs, level_values_job(make));
  }
}

}  // namespace

Jobs random_jobs(Kernel kernel, std::span<const std::size_t> sizes, const JobOptions& options,
                 JobMemory& memory) {
  JobMaker make(memory, options);
  Jobs jobs;
  for (const std::size_t n : sizes) {
    make.n = n;
    append_job(kernel, make, jobs);
  }
  return jobs;
}

}  // namespace pride
