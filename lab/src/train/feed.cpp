// SPDX-License-Identifier: Apache-2.0
#include "train/feed.h"

#include "pride/random_bits.h"
#include "train/images.h"
#include "train/shares.h"
#include "train/streams.h"

namespace pride::train {

Feed::Feed(const TrainPlan& plan, int number)
    : plan_(plan),
      number_(number),
      sampler_(plan.task->n_samples(), plan.task->labels(), sampler_options(plan, number)),
      queue_(plan.task->make_queue()),
      draws_(static_cast<std::size_t>(plan.options.batch)) {}

void Feed::renumber(int number) {
  number_ = number;
  sampler_ = Sampler(plan_.task->n_samples(), plan_.task->labels(), sampler_options(plan_, number));
}

void Feed::begin(std::int64_t step, std::int64_t ahead, int saved_by, const Participation& rounds) {
  rounds_ = &rounds;
  ahead_ = ahead;
  taken_ = asked_ = step * plan_.options.accumulate;
  // another number of workers saved: continue after as many samples, in this number's order
  if (saved_by > 0 && saved_by != plan_.world) {
    ahead_ = (taken_ + ahead_) * saved_by / plan_.world - taken_;
  }
}

Batch Feed::next() {
  const TrainOptions& o = plan_.options;
  while (!rounds_->takes_part(taken_ / o.accumulate)) taken_ += o.accumulate;
  for (; queued_ < queue_->depth() && asked_ < plan_.steps * o.accumulate; ++asked_) {
    if (!rounds_->takes_part(asked_ / o.accumulate)) continue;
    sampler_.draw(static_cast<std::uint64_t>((asked_ + ahead_) * o.batch), draws_);
    queue_->ask_train(draws_);
    ++queued_;
  }
  Batch batch = queue_->take();
  --queued_;
  if (o.mixup > 0) {
    mix_up(o.mixup,
           PhiloxStream(o.seed, streams::kMixUp, static_cast<std::uint64_t>(taken_),
                        static_cast<std::uint32_t>(number_)),
           batch);
  }
  ++taken_;
  return batch;
}

}  // namespace pride::train
