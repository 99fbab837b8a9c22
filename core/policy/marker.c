/* Marker: see marker.h. A serial number that is odd while the record changes lets any thread read it without
 * a lock; all fields are atomic, so that a torn read is noticed and is no race. */
#include "policy/marker.h"
#include <string.h>

/* Of this thread. In the program itself (not in a shared object) such a variable is reached without a call,
 * which is what makes reading it safe in a signal handler. */
static _Thread_local const struct policy_marker *here;

void policy_marker_enter(struct policy_marker *m, const char *policy, const char *function, uint64_t now_ns)
{
    uint64_t words[POLICY_NAME_SIZE / 8] = { 0 };
    uint64_t serial = atomic_load_explicit(&m->serial, memory_order_relaxed);
    memcpy(words, policy, strnlen(policy, sizeof words - 1));
    atomic_store_explicit(&m->serial, serial + 1, memory_order_relaxed);
    for (unsigned i = 0; i < POLICY_NAME_SIZE / 8; i++)
        atomic_store_explicit(&m->name[i], words[i], memory_order_release);
    atomic_store_explicit(&m->since_ns, now_ns, memory_order_release);
    atomic_store_explicit(&m->function, function, memory_order_release);
    atomic_store_explicit(&m->serial, serial + 2, memory_order_release);
    here = m;
    atomic_signal_fence(memory_order_seq_cst);
}

void policy_marker_leave(struct policy_marker *m)
{
    atomic_signal_fence(memory_order_seq_cst);
    here = NULL;
    atomic_store_explicit(&m->function, NULL, memory_order_release);
}

bool policy_marker_read(const struct policy_marker *m, struct policy_inside *ret_inside)
{
    uint64_t serial = atomic_load_explicit(&m->serial, memory_order_acquire), words[POLICY_NAME_SIZE / 8];
    const char *function = atomic_load_explicit(&m->function, memory_order_acquire);
    uint64_t since_ns = atomic_load_explicit(&m->since_ns, memory_order_acquire);
    for (unsigned i = 0; i < POLICY_NAME_SIZE / 8; i++)
        words[i] = atomic_load_explicit(&m->name[i], memory_order_acquire);
    if (!function || serial % 2 || atomic_load_explicit(&m->serial, memory_order_acquire) != serial)
        return false;
    memcpy(ret_inside->policy, words, sizeof ret_inside->policy);
    ret_inside->function = function;
    ret_inside->since_ns = since_ns;
    return true;
}

bool policy_marker_here(struct policy_inside *ret_inside)
{
    atomic_signal_fence(memory_order_seq_cst);
    return here && policy_marker_read(here, ret_inside);
}
