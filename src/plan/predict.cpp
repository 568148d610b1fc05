// The arithmetic of docs/performance.md.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pride/error.h"
#include "pride/plan.h"

namespace pride {
namespace {

// The latencies of a bucket that is alone in flight.
double latencies(const NetworkModel& network, const MethodModel& method, int world) {
  return method.phases * (network.latency_s + network.message_s * std::max(0, world - 2));
}

std::string bottleneck_of(double compute, double bytes, double latency, double arithmetic) {
  const double most = std::max({compute, bytes, latency, arithmetic});
  if (most == compute) return "compute";
  if (most == bytes) return "bandwidth";
  return most == latency ? "latency" : "arithmetic";
}

// A period in which some steps exchange a part of d, and the others nothing.
Prediction predict_period(const NetworkModel& network, const MethodModel& method,
                          const StepModel& step, bool overlap) {
  const auto period = static_cast<double>(method.period),
             exchanges = static_cast<double>(method.exchanges),
             delay = static_cast<double>(method.delay);
  const double part = 1 / exchanges;
  const MethodModel plain{.name = method.name, .phases = 0, .encode_s = method.local_s};
  MethodModel sending = method;
  sending.period = sending.exchanges = 1;
  sending.bytes = method.bytes * period * part;
  sending.encode_s = method.encode_s * part + method.local_s * (1 - part);
  sending.vote_s *= part;
  sending.apply_s *= part;
  StepModel some = step;
  some.buckets = std::max(1, static_cast<int>(step.buckets * part));
  const Prediction without = predict(network, plain, step, overlap);
  Prediction p = predict(network, sending, some, overlap);
  // a delay hides neither encode and apply nor the wait for a link that is always busy
  const double longer = std::max(0.0, p.step_s - without.step_s);
  const double busy = p.network_s - period * part * without.step_s;
  const double own = std::max(0.0, sending.encode_s + sending.apply_s - method.local_s);
  const double waited =
      overlap && method.delay > 0 ? std::max({own, longer - delay * without.step_s, busy}) : longer;
  const double share = exchanges / period;
  p.step_s = without.step_s + share * waited;
  p.hidden_s = share * (p.hidden_s + longer - waited) + (1 - share) * without.hidden_s;
  p.network_s *= share;
  p.arithmetic_s = share * p.arithmetic_s + (1 - share) * without.arithmetic_s;
  const double bytes_s = step.world == 1 ? 0 : method.bytes / network.bytes_per_s;
  p.bottleneck = bottleneck_of(step.compute_s, bytes_s, p.network_s - bytes_s, p.arithmetic_s);
  return p;
}

}  // namespace

Prediction predict(const NetworkModel& network, const MethodModel& method, const StepModel& step,
                   bool overlap) {
  PRIDE_CHECK(step.buckets >= 1, "predict: ", step.buckets, " buckets");
  PRIDE_CHECK(step.world == 1 || network.bytes_per_s > 0, "predict: bandwidth ",
              network.bytes_per_s);
  if (method.period > 1) return predict_period(network, method, step, overlap);
  const bool alone = step.world == 1;
  const double bytes_s = alone ? 0 : method.bytes / network.bytes_per_s;
  const double latency_s = alone ? 0 : latencies(network, method, step.world);
  const auto n = static_cast<double>(step.buckets);

  Prediction p;
  p.network_s = bytes_s + n * latency_s;
  p.arithmetic_s = method.encode_s + method.vote_s + method.apply_s;
  const double serial = step.compute_s + p.arithmetic_s + p.network_s;
  p.bottleneck = bottleneck_of(step.compute_s, bytes_s, n * latency_s, p.arithmetic_s);
  if (!overlap) {
    p.step_s = serial;
    return p;
  }
  // buckets in flight share the link and hide each other's latencies and votes
  const double lanes = std::min<double>(step.exchange_threads, n);
  const double exchange_s = std::max(bytes_s, (p.network_s + method.vote_s) / lanes);
  const double last_s = (bytes_s + method.vote_s + method.apply_s) / n + latency_s;
  // the exchange begins when the first bucket is encoded; the step ends after the last one's result
  const double gradients_s = step.compute_s * (1 - step.forward_share);
  // methods on whole gradients read them twice: to agree on scales, and to encode
  const double first_s = method.whole_gradient
                             ? step.compute_s + method.encode_s / 2 * (1 + 1 / n)
                             : step.compute_s - gradients_s + (gradients_s + method.encode_s) / n;
  const double by_network = first_s + exchange_s + method.apply_s / n;
  const double by_compute = step.compute_s + method.encode_s + last_s;
  // one core does everything except waiting; a second one computes the votes
  const double votes = step.cores >= 2 ? 0 : method.vote_s * (2 - std::max(1.0, step.cores));
  const double moving = alone ? 0 : method.bytes * network.cpu_s / std::min(1.0, step.cores);
  const double by_cores =
      step.compute_s + method.encode_s + method.apply_s + votes + (step.cores >= 2 ? 0 : moving);
  p.step_s = std::min(serial, std::max({by_network, by_compute, by_cores}));
  p.hidden_s = serial - p.step_s;
  return p;
}

MethodModel with(MethodModel method, const Sent& sent) {
  method.bytes = sent.bytes;
  method.phases = sent.phases;
  method.vote_s *= sent.vote_times;
  return method;
}

int best_buckets(const NetworkModel& network, const MethodModel& method, StepModel step,
                 const BucketRange& range, const std::function<Sent(int buckets)>& sent) {
  int best = 0;
  double shortest = 0;
  for (int n = 1; n <= range.most; n *= 2) {
    if (n < range.fewest) continue;
    step.buckets = n;
    const double seconds = predict(network, with(method, sent(n)), step, true).step_s;
    if (best > 0 && seconds >= shortest) continue;
    shortest = seconds;
    best = n;
  }
  PRIDE_CHECK(best > 0, "best_buckets: no power of two from ", range.fewest, " to ", range.most);
  return best;
}

}  // namespace pride
