// The purposes that key the trainer's random streams; a purpose is used by one place only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace pride::train::streams {

inline constexpr std::uint32_t kInit = 0x101;       // (seed, name of the parameter)
inline constexpr std::uint32_t kShuffle = 0x102;    // (seed, epoch, rank + 1 or 0 for all ranks)
inline constexpr std::uint32_t kAugment = 0x103;    // (seed, sample, epoch)
inline constexpr std::uint32_t kOffset = 0x104;     // (seed, epoch): where text windows begin
inline constexpr std::uint32_t kDirichlet = 0x105;  // (seed, class): shares, then their assignment
inline constexpr std::uint32_t kGenerate = 0x106;   // (seed, sample): the tokens of a text
inline constexpr std::uint32_t kExamples = 0x107;  // (seed, hash of the query): a prompt's examples
inline constexpr std::uint32_t kParticipation = 0x109;  // (seed, round): participation
inline constexpr std::uint32_t kFewshot = 0x108;        // (seed, task): the questions to train on

inline constexpr std::uint32_t kCrop = 0x120;   // (seed, sample, epoch): crop and flip
inline constexpr std::uint32_t kMixUp = 0x121;  // (seed, pass, rank): the share of mixing

}  // namespace pride::train::streams
