/* A policy in C++. That this compiles, every layout assertion included, is one test; run, it asks itself once.
 * As a shared object it must be found sound: tests/e2e/test_policy_walkthrough.py. */
#include "policy.h"
#include "policy_words.h"

#include <new>

namespace
{

const policy_reason reasons[] = { { "first_free", "The first free slot." }, { "none", "None is free." } };
const policy_setting settings[] = { { "patience_s", POLICY_SECONDS, 0, 0.0, 60.0, "5", "s", "How long.",
                                      nullptr, nullptr } };

struct state {
    double patience_s;
};

void *create(const policy_create_args *args) noexcept
{
    auto *x = new (std::nothrow) state;
    if (x)
        x->patience_s = args->values->real;
    return x;
}

void destroy(void *self) noexcept
{
    delete static_cast<state *>(self);
}

int place(const void *, const policy_snapshot *s, const policy_request *, policy_place *answer) noexcept
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (policy_is_free(policy_at(s, i)) && !policy_row_above(s, i)) {
            answer->slot = i;
            policy_choose_source(s, answer);
            answer->tokens_lost = policy_tokens_lost(s, answer);
            return POLICY_DECIDED;
        }
    }
    answer->reason = 1;
    return POLICY_NONE;
}

} // namespace

extern "C" const slot_policy slot_policy_entry = { POLICY_HEAD(0), "cxx",   "1",     "In C++.", reasons,
                                                   settings,       2,       1,       create,    destroy,
                                                   place,          nullptr, nullptr, nullptr };

int main()
{
    policy_history slots[2] = {};
    policy_snapshot s = {};
    policy_request request = {};
    policy_place answer = {};
    slots[0].flags = POLICY_BUSY;
    slots[1].id = 1;
    s.slots = slots;
    s.n_slots = 2;
    s.slot_stride = sizeof slots[0];
    const slot_policy &entry = slot_policy_entry;
    return entry.place(nullptr, &s, &request, &answer) == POLICY_DECIDED && answer.slot == 1 ? 0 : 1;
}
