/* Cuda blas: cuBLAS, opened at first use. See cuda_blas.cuh.
 *
 * Its headers are not needed: what is used of its interface, which has not changed since version 11, is
 * written down here. Thread: the device's. Must not know: weights' types, sessions. */
#include "cuda_blas.cuh"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* In this order: the loader's path (LD_LIBRARY_PATH reaches the one of the nvidia-cublas wheel), the toolkit.
 */
static const char *const NAMES[] = { "libcublas.so.13", "libcublas.so.12",
                                     "/usr/local/cuda/lib64/libcublas.so" };

enum {
    OP_NONE = 0,
    OP_TRANSPOSED = 1,
    TYPE_FLOAT = 0,
    TYPE_HALF = 2,
    COMPUTE_FLOAT = 68,
    ALGORITHM_OF_ITS_CHOICE = -1
};

typedef struct blas_context *blas_handle;

struct cuda_blas {
    void *library;
    blas_handle handle;
    int (*destroy)(blas_handle);
    int (*gemm)(blas_handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
                int type_a, int stride_a, const void *b, int type_b, int stride_b, const void *beta, void *c,
                int type_c, int stride_c, int compute, int algorithm);
    const char *(*text)(int status);
};

static void *library_open(char *err, size_t errlen)
{
    int n = snprintf(err, errlen, "cuBLAS cannot be opened:");
    for (const char *name : NAMES) {
        void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
        if (n >= 0 && (size_t)n < errlen)
            n += snprintf(err + n, errlen - (size_t)n, " %s;", dlerror());
    }
    return NULL;
}

/* The named function, or NULL with the text saying which is missing. */
static void *function(void *library, const char *name, char *err, size_t errlen)
{
    void *f = dlsym(library, name);
    if (!f)
        snprintf(err, errlen, "cuBLAS has no %s", name);
    return f;
}

int cuda_blas_open(cudaStream_t stream, struct cuda_blas **ret_blas, char *err, size_t errlen)
{
    int (*create)(blas_handle *);
    int (*set_stream)(blas_handle, cudaStream_t);
    struct cuda_blas *b = (struct cuda_blas *)calloc(1, sizeof *b);
    if (!b) {
        snprintf(err, errlen, "no memory for cuBLAS");
        return -ENOMEM;
    }
    int r = -ENOENT, status;
    b->library = library_open(err, errlen);
    if (!b->library)
        goto fail;
    *(void **)&create = function(b->library, "cublasCreate_v2", err, errlen);
    *(void **)&set_stream = function(b->library, "cublasSetStream_v2", err, errlen);
    *(void **)&b->destroy = function(b->library, "cublasDestroy_v2", err, errlen);
    *(void **)&b->gemm = function(b->library, "cublasGemmEx", err, errlen);
    *(void **)&b->text = function(b->library, "cublasGetStatusString", err, errlen);
    if (!create || !set_stream || !b->destroy || !b->gemm || !b->text)
        goto fail;
    r = -EIO;
    status = create(&b->handle);
    if (!status)
        status = set_stream(b->handle, stream);
    if (status) {
        snprintf(err, errlen, "cuBLAS does not start: %s", b->text(status));
        goto fail;
    }
    *ret_blas = b;
    return 0;

fail:
    cuda_blas_close(b);
    return r;
}

void cuda_blas_close(struct cuda_blas *b)
{
    if (!b)
        return;
    if (b->handle)
        b->destroy(b->handle);
    if (b->library)
        dlclose(b->library);
    free(b);
}

int cuda_blas_product(struct cuda_blas *b, const __half *w, const __half *x, float *out, uint32_t rows,
                      uint32_t cols, uint32_t n, uint32_t stride, bool add, char *err, size_t errlen)
{
    /* Column by column, as it reads: our rows of w are the columns of its A, which is then transposed; rows
     * of x are the columns of B, and rows of out those of C. */
    const float one = 1, old = add ? 1 : 0;
    int status = b->gemm(b->handle, OP_TRANSPOSED, OP_NONE, (int)rows, (int)n, (int)cols, &one, w, TYPE_HALF,
                         (int)cols, x, TYPE_HALF, (int)cols, &old, out, TYPE_FLOAT, (int)stride,
                         COMPUTE_FLOAT, ALGORITHM_OF_ITS_CHOICE);
    if (!status)
        return 0;
    snprintf(err, errlen, "cuBLAS: a product of %u by %u by %u: %s", n, cols, rows, b->text(status));
    return -EIO;
}
