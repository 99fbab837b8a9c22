/* Altstack: see altstack.h. */
#include "util/altstack.h"
#include <errno.h>
#include <stdlib.h>

#define STACK_BYTES ((size_t)64 << 10)

int altstack_begin(struct altstack *a)
{
    stack_t stack = { .ss_size = STACK_BYTES };
    a->memory = malloc(STACK_BYTES);
    if (!a->memory)
        return -ENOMEM;
    stack.ss_sp = a->memory;
    if (sigaltstack(&stack, &a->before) < 0) {
        int r = -errno;
        free(a->memory);
        a->memory = NULL;
        return r;
    }
    return 0;
}

void altstack_end(struct altstack *a)
{
    if (!a->memory)
        return;
    sigaltstack(&a->before, NULL);
    free(a->memory);
    a->memory = NULL;
}
