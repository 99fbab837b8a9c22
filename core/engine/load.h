/* Load: weights from the file to the stages' devices, and which layers each stage gets. Thread: each stage's
 * own, one at a time, while engine_open waits. Must not know: windows in service.
 * Tests: tests/unit/test_engine.c, tests/unit/test_stages.c */
#pragma once
#include "engine/engine_impl.h"

struct load {
    const struct gguf *file;
    const struct model *model;
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
    uint64_t done, total; /* bytes of the file's weights; a matrix that two stages keep counts twice */
    bool sample;          /* engine_options' */
};

/* The stages' devices are open: gives every stage its layers, by measured cost where there are several. Some
 * weights are loaded for it. */
int load_divide(struct engine *e, struct load *l, char *err, size_t errlen);
/* Loads all other weights. */
int load_rest(struct engine *e, struct load *l, char *err, size_t errlen);
/* Gives the stage's weights back, on its thread. */
void load_free(struct stage *st);
/* KV of `layers` layers in `blocks` blocks. */
struct ops_kv_shape load_kv_shape(const struct engine *e, uint32_t layers, uint32_t blocks);
