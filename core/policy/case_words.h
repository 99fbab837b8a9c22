/* Case words (private to the case's files): the names that stand in JSON for the numbers of abi/policy.h. */
#pragma once
#include "abi/policy.h"

static const char *const policy_stop_names[POLICY_STOPS] = {
    [POLICY_STOP_NONE] = "none",           [POLICY_STOP_END_TURN] = "end_turn",
    [POLICY_STOP_TOOL_USE] = "tool_use",   [POLICY_STOP_LENGTH] = "length",
    [POLICY_STOP_CANCELLED] = "cancelled",
};

static inline const char *policy_state_name(uint32_t state)
{
    return state == POLICY_STATE_PROTECTED ? "protected"
           : state == POLICY_STATE_EXPIRED ? "expired"
                                           : "blank";
}
