// The contract of every transport: checks to be run by all ranks of a fresh world each.
// SPDX-License-Identifier: Apache-2.0
//
// A transport's test runs through kChecks at several sizes (see thread_comm_test.cpp). A check may
// leave its world dead.
#pragma once

#include "comm/contract_collectives.h"
#include "comm/contract_failures.h"
#include "comm/contract_messages.h"

namespace pride::contract {

struct Check {
  const char* name;
  void (*run)(Communicator&);
  bool needs_messages = false;  // between two ranks: not every transport has them
};

inline constexpr Check kChecks[] = {
    {"AllToAllMovesSlices", all_to_all_moves_slices},
    {"AllToAllVMovesUnevenMessages", all_to_all_v_moves_uneven_messages},
    {"AllToAllVMovesWhatIsListed", all_to_all_v_moves_what_is_listed},
    {"AllGatherCollectsInRankOrder", all_gather_collects_in_rank_order},
    {"AllGatherVCollectsUnevenParts", all_gather_v_collects_uneven_parts},
    {"BroadcastReachesAllFromAnyRoot", broadcast_reaches_all_from_any_root},
    {"BarrierHoldsUntilAllHaveCome", barrier_holds_until_all_have_come},
    {"NativeSumIsExactOnIntegers", native_sum_is_exact_on_integers},
    {"NativeSumOfInt8IsExact", native_sum_of_integers_is_exact<std::int8_t>},
    {"NativeSumOfInt16IsExact", native_sum_of_integers_is_exact<std::int16_t>},
    {"NativeSumOfInt32IsExact", native_sum_of_integers_is_exact<std::int32_t>},
    {"NativeSumOfBf16IsExactOnSmallNumbers", native_sum_of_bf16_is_exact_on_small_numbers},
    {"NativeSumOfBf16IsTheSameOnAllRanks", native_sum_of_bf16_is_the_same_on_all_ranks},
    {"MessagesWithOneTagKeepTheirOrder", messages_with_one_tag_keep_their_order, true},
    {"TagsAreSeparate", tags_are_separate, true},
    {"LargeSendsMayBeWaitedForFirst", large_sends_may_be_waited_for_first, true},
    {"TestComesTrueWithoutWait", test_comes_true_without_wait, true},
    {"DuplicateHasItsOwnMessages", duplicate_has_its_own_messages, true},
    {"DuplicateServesASecondThread", duplicate_serves_a_second_thread},
    {"SplitOrdersByKeyThenRank", split_orders_by_key_then_rank},
    {"TrafficIsCountedExactly", traffic_is_counted_exactly},
    {"BadArgumentsChangeNothing", bad_arguments_change_nothing, true},
    {"LongerMessageFailsAllRanks", longer_message_fails_all_ranks},
    {"ShorterMessageFailsAllRanks", shorter_message_fails_all_ranks},
    {"LargeMismatchFailsAllRanks", large_mismatch_fails_all_ranks},
    {"LargeShorterMessageFailsAllRanks", large_shorter_message_fails_all_ranks},
    {"MessageLongerThanNothingFailsAllRanks", message_longer_than_nothing_fails_all_ranks},
    {"NativeSumOfOtherSizeFailsAllRanks", native_sum_of_other_size_fails_all_ranks<float>},
    {"NativeSumOfInt8OfOtherSizeFails", native_sum_of_other_size_fails_all_ranks<std::int8_t>},
    {"NativeSumOfInt16OfOtherSizeFails", native_sum_of_other_size_fails_all_ranks<std::int16_t>},
    {"NativeSumOfInt32OfOtherSizeFails", native_sum_of_other_size_fails_all_ranks<std::int32_t>},
    {"NativeSumOfBf16OfOtherSizeFails", native_sum_of_other_size_fails_all_ranks<BFloat16>},
    {"NativeSumOfOtherTypeFailsAllRanks", native_sum_of_other_type_fails_all_ranks},
    {"RankThatFailsWithinANativeSumFailsAll", rank_that_fails_within_a_native_sum_fails_all_ranks},
    {"RankThatStallsWithinANativeSumFailsAll",
     rank_that_stalls_within_a_native_sum_fails_all_ranks},
    {"StalledRankFailsAllRanks", stalled_rank_fails_all_ranks},
    {"ErrorNamesScopeCallRanksAndBytes", error_names_scope_call_ranks_and_bytes, true},
    {"FailReachesWaitersDuplicatesAndSplits", fail_reaches_waiters_duplicates_and_splits, true},
    {"FailOfASplitNamesTheFirstWorldsRank", fail_of_a_split_names_the_first_worlds_rank},
    {"EveryCallThrowsAfterFail", every_call_throws_after_fail, true},
    {"BuffersAreFreeAfterFail", buffers_are_free_after_fail, true},
};

}  // namespace pride::contract
