/* Prompt rate: see rate.h. A weighted least-squares line through (middle of the chunk, ns per token), each
 * chunk weighing as many tokens as it has, and one term that pulls the slope towards first / USUAL. */
#include "slots/rate.h"
#include <math.h>
#include <string.h>

#define USUAL 16384.0   /* position at which attention costs as much as everything else */
#define PULL 16.0       /* tokens that the usual slope weighs */
#define MEMORY 131072.0 /* tokens after which a chunk counts 1/e */
#define LATELY 4096.0   /* the same for the measured rate */
#define LEAST_CHUNK 8u
#define DEFAULT_NS 1e6

void prompt_rate_init(struct prompt_rate *r)
{
    memset(r, 0, sizeof *r);
    r->first = DEFAULT_NS;
    r->slope = DEFAULT_NS / USUAL;
}

static void fit(struct prompt_rate *r)
{
    /* Minimises sum w (y - a - b x)^2 + PULL (b USUAL - a)^2: two equations in a and b. */
    double aa = r->weight + PULL, ab = r->sum_x - PULL * USUAL, bb = r->sum_xx + PULL * USUAL * USUAL;
    double det = aa * bb - ab * ab;
    double a = (r->sum_y * bb - r->sum_xy * ab) / det, b = (r->sum_xy * aa - r->sum_y * ab) / det;
    if (!(b >= 0)) { /* faster further on: noise. One price for all */
        a = r->sum_y / r->weight;
        b = 0;
    } else if (!(a >= 0)) { /* nothing but attention */
        a = 0;
        b = r->sum_xy / r->sum_xx;
    }
    r->first = a;
    r->slope = b;
}

void prompt_rate_learn(struct prompt_rate *r, uint32_t from, uint32_t n, uint64_t ns)
{
    if (n < LEAST_CHUNK || !ns)
        return;
    double w = n, x = from + (n - 1) / 2.0, y = (double)ns / w, fade = exp(-w / MEMORY);
    r->weight = r->weight * fade + w;
    r->sum_x = r->sum_x * fade + w * x;
    r->sum_xx = r->sum_xx * fade + w * x * x;
    r->sum_y = r->sum_y * fade + w * y;
    r->sum_xy = r->sum_xy * fade + w * x * y;
    fade = exp(-w / LATELY);
    r->tokens = r->tokens * fade + w;
    r->ns = r->ns * fade + (double)ns;
    fit(r);
}

uint64_t prompt_rate_ns(const struct prompt_rate *r, uint32_t from, uint32_t to)
{
    if (from >= to)
        return 0;
    double n = (double)to - from;
    /* The positions from..to-1 add up to n times their middle. */
    double ns = n * (r->first + r->slope * ((double)from + (n - 1) / 2));
    return ns < 9e18 ? (uint64_t)ns : INT64_MAX;
}

double prompt_rate_measured(const struct prompt_rate *r)
{
    return r->ns > 0 ? r->tokens / r->ns * 1e9 : 0;
}

uint32_t prompt_rate_tokens(const struct prompt_rate *r, uint32_t from, uint64_t ns)
{
    /* slope/2 n^2 + (first + slope (from - 1/2)) n = ns, solved in the form that bears a slope of 0. */
    double b = r->first + r->slope * ((double)from - 0.5), disc = b * b + 2 * r->slope * (double)ns;
    double divisor = b + sqrt(disc > 0 ? disc : 0);
    double n = divisor > 0 ? 2 * (double)ns / divisor : 1;
    return n < 1 ? 1 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}
