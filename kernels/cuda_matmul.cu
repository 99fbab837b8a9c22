/* Cuda matmul: prepares the rows of a product once, and sends its weights to the kernel for their type.
 *
 * Weights of one type are multiplied in one launch, q, k and v or gate and up together: small matrices alone
 * would leave most of the device idle. Nothing here affects a bit.
 * Thread: the stage thread. Must not know: which matrix of which layer this is.
 * Tests: tests/kernels/test_matmul.c */
#include "cuda_common.cuh"

static bool takes_floats(const struct ops_dev *d, const struct ops_weight *w)
{
    return !w->blocks || d->activations == OPS_F32;
}

static size_t round_up(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* Memory for the forms of the rows that some weight needs. */
static bool place_rows(struct ops_dev *d, const struct ops_matmul *m, uint32_t cols, bool large,
                       struct cuda_rows *x)
{
    bool floats = large, quantized = false;
    for (uint32_t j = 0; !large && j < m->count; j++)
        (takes_floats(d, m->weight[j]) ? floats : quantized) = true;
    const size_t values = (size_t)m->n * cols, blocks = values / CUDA_BLOCK;
    const size_t f = floats ? round_up(values * sizeof *x->f) : 0;
    const uint32_t terms = d->activations == OPS_INT16 ? 2 : 1;
    const size_t q = quantized ? round_up(values * terms) : 0;
    const size_t scale = quantized ? round_up(blocks * terms * sizeof *x->scale) : 0;
    unsigned char *at = (unsigned char *)cuda_room(d, &d->prepared, f + q + scale, "rows of a product");
    if (!at)
        return false;
    *x = cuda_rows{};
    x->terms = terms;
    if (floats)
        x->f = (float *)at;
    if (quantized) {
        x->q = (int8_t *)(at + f);
        x->scale = (struct cuda_scale *)(at + f + q);
    }
    return true;
}

static void multiply_term(struct ops_dev *d, uint32_t type, const struct cuda_product *p)
{
    const bool few = p->n <= CUDA_MATVEC_ROWS;
    (few ? cuda_matvec : cuda_tile)(type, p, d->stream);
    cuda_launched(d, few ? "matvec" : "tile");
}

static void multiply(struct ops_dev *d, uint32_t type, bool floats, const struct cuda_product *p)
{
    if (floats) {
        cuda_floats(type, p, d->stream);
        cuda_launched(d, "floats");
        return;
    }
    multiply_term(d, type, p);
    struct cuda_product next = *p;
    next.add = true;
    for (uint32_t j = 0; j < next.count; j++)
        next.w[j].bias = NULL;
    for (uint32_t term = 1; term < p->x.terms; term++) {
        next.x.q += (size_t)p->n * p->cols;
        next.x.scale += (size_t)p->n * p->cols / CUDA_BLOCK;
        multiply_term(d, type, &next);
    }
}

void cuda_matmul(struct ops_dev *d, const struct ops_matmul *m)
{
    struct cuda_product p = {};
    bool done[OPS_MAX_OUT] = {};
    cuda_use(d);
    p.n = m->n;
    p.cols = m->weight[0]->cols;
    p.add = m->add;
    const bool large = cuda_is_large(d, m, p.cols);
    if (m->n == 0 || !place_rows(d, m, p.cols, large, &p.x))
        return;
    cuda_prepare(m, p.cols, &p.x, d->stream);
    cuda_launched(d, "prepare");
    if (large) {
        cuda_large(d, m, p.cols, p.x.f);
        return;
    }
    for (uint32_t j = 0; j < m->count; j++) {
        const struct ops_weight *first = m->weight[j];
        if (done[j])
            continue;
        p.count = 0;
        for (uint32_t k = j; k < m->count; k++) {
            const struct ops_weight *w = m->weight[k];
            if (w->type != first->type)
                continue;
            p.w[p.count++] = cuda_matrix{ w->at, m->bias[k], m->out[k], w->rows };
            done[k] = true;
        }
        multiply(d, first->type, takes_floats(d, first), &p);
    }
}
