// How the flags of `pride train` are written down.
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "train/options.h"

namespace pride::app {
namespace {

template <typename T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

nlohmann::ordered_json to_json(const TrainOptions& o) {
  return {{"task", o.task},
          {"data", o.data},
          {"vocab", o.vocab},
          {"examples", o.examples},
          {"shots", o.shots},
          {"skip-long", o.skip_long},
          {"model", o.model},
          {"init", o.init},
          {"layers", or_null(o.layers)},
          {"heads", or_null(o.heads)},
          {"width", or_null(o.width)},
          {"context", or_null(o.context)},
          {"patch", or_null(o.patch)},
          {"init-std", or_null(o.init_std)},
          {"embedding-std", or_null(o.embedding_std)},
          {"image-size", or_null(o.image_size)},
          {"loader-threads", or_null(o.loader_threads)},
          {"label-smoothing", o.label_smoothing},
          {"mixup", o.mixup},
          {"method", o.method},
          {"method-opt", o.method_options},
          {"lr", or_null(o.lr)},
          {"beta1", or_null(o.beta1)},
          {"beta2", or_null(o.beta2)},
          {"eps", or_null(o.eps)},
          {"weight-decay", or_null(o.weight_decay)},
          {"decay-all", o.decay_all},
          {"schedule", o.schedule},
          {"warmup", o.warmup},
          {"final-lr-factor", o.final_lr_factor},
          {"clip-norm", o.clip_norm},
          {"clip-global-norm", o.clip_global_norm},
          {"workers", o.workers},
          {"batch", o.batch},
          {"accumulate", o.accumulate},
          {"sharding", o.sharding},
          {"vote-weight", o.vote_weight},
          {"epochs", or_null(o.epochs)},
          {"steps", or_null(o.steps)},
          {"seed", o.seed},
          {"eval-every", o.eval_every},
          {"eval-batches", or_null(o.eval_batches)},
          {"bucket-mb", or_null(o.bucket_mb)},
          {"bucket-coords", or_null(o.bucket_coords)},
          {"overlap", o.overlap.value_or(false)},
          {"exchange-threads", o.exchange_threads},
          {"hierarchical", o.hierarchical},
          {"non-finite", o.non_finite},
          {"device", o.device},
          {"dtype", o.dtype},
          {"timeout", o.timeout_s},
          {"save-every", o.save_every},
          {"resume", o.resume},
          {"resume-local", o.resume_local}};
}

}  // namespace pride::app
