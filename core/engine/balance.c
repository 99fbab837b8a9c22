/* Balance: see balance.h. From the last stage to the first: how well it and those behind it can share the
 * layers from each one on. */
#include "engine/balance.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* How good a way to share layers is: the slowest stage, then how uneven they are. */
struct score {
    double slowest, squares;
};

struct choice {
    struct score score;
    uint32_t end; /* of the stage's own layers */
};

static bool better(struct score a, struct score b)
{
    return a.slowest < b.slowest || (a.slowest <= b.slowest && a.squares < b.squares);
}

static double stage_time(const struct balance *b, const double *sum, uint32_t stage, uint32_t from,
                         uint32_t to)
{
    double cost = sum[to] - sum[from];
    if (stage == 0)
        cost += b->embed;
    if (stage + 1 == b->n_stages)
        cost += b->head;
    return cost / b->threads[stage];
}

/* `after` is the next stage's row, NULL for the last stage. */
static struct choice choose(const struct balance *b, const double *sum, uint32_t stage, uint32_t from,
                            const struct choice *after)
{
    uint32_t behind = b->n_stages - stage - 1, last = b->n_layers - behind;
    uint32_t least = stage == 0 ? b->at_first : 1;
    uint32_t first = behind ? from + least : last;
    struct choice best = { .end = 0 };

    for (uint32_t end = first; end <= last; end++) {
        double time = stage_time(b, sum, stage, from, end);
        struct score s = { .slowest = time, .squares = time * time };
        if (after) {
            const struct score *rest = &after[end].score;
            s.slowest = time > rest->slowest ? time : rest->slowest;
            s.squares += rest->squares;
        }
        if (!best.end || better(s, best.score))
            best = (struct choice){ .score = s, .end = end };
    }
    return best;
}

int balance_layers(const struct balance *b, uint32_t *ret_first)
{
    size_t width = (size_t)b->n_layers + 1;
    double *sum = calloc(width, sizeof *sum);
    struct choice *table = calloc(width * b->n_stages, sizeof *table); /* [stage][first layer] */
    int r = sum && table ? 0 : -ENOMEM;

    for (uint32_t i = 0; r == 0 && i < b->n_layers; i++)
        sum[i + 1] = sum[i] + b->layer[i];
    for (uint32_t s = b->n_stages; r == 0 && s-- > 0;) {
        struct choice *row = table + s * width;
        for (uint32_t from = s; from < b->n_layers - (b->n_stages - s - 1); from++)
            row[from] = choose(b, sum, s, from, s + 1 < b->n_stages ? row + width : NULL);
    }
    if (r == 0)
        ret_first[0] = 0;
    for (uint32_t s = 0; r == 0 && s < b->n_stages; s++)
        ret_first[s + 1] = table[s * width + ret_first[s]].end;
    free(table);
    free(sum);
    return r;
}
