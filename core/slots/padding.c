/* Padding: see padding.h. */
#include "slots/padding.h"

static bool is_there(const struct slots_history *h)
{
    return !h->busy && h->n && h->reliable;
}

uint32_t padding_lost(const struct slots *s, const uint32_t *active, uint32_t n_active, uint32_t *ret_lost)
{
    const struct slots_options *o = slots_options(s);
    uint32_t last = 0, n = 0;
    for (uint32_t i = 0; i < n_active; i++)
        last = active[i] > last ? active[i] : last;
    for (uint32_t i = last - last % o->group_slots; n_active && i < last; i++)
        if (is_there(slots_at(s, i)))
            ret_lost[n++] = i;
    return n;
}
