/* Altstack: a stack of its own for a thread's signal handlers, so that a handler still runs when the thread's
 * stack is what ran out. Thread: the calling one's. Tests: tests/e2e/test_policy_faults.py */
#pragma once
#include <signal.h>

struct altstack {
    void *memory;
    stack_t before;
};

/* -ENOMEM: then handlers run on the thread's own stack, as without. */
int altstack_begin(struct altstack *a);
/* Before the thread ends; zeroed or begun. */
void altstack_end(struct altstack *a);
