/* Cmd serve load: what `berth serve` decides and opens before it listens: the model file, how long the
 * context and how large the key-value pool may be on this machine, the engine; and what `berth check` tells
 * of it without opening the engine. One thread, at start. Tests: tests/e2e/test_serve.py, test_check.py */
#pragma once
#include "config/config.h"
#include "engine/engine.h"
#include "http/http.h"
#include "model/chat.h"
#include "model/fingerprint.h"
#include "model/tokenizer.h"

struct loaded {
    char *path, *name, *chat_source;
    char arch[32];
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct engine *engine;
    struct engine_info info;
    const char *device;     /* "cpu", "cuda" */
    uint64_t device_memory; /* free on CUDA devices before anything was loaded */
    uint32_t context, context_train, kv_tokens, threads, rows, slots, groups, n_embd;
    bool padded;        /* windows */
    bool sample;        /* engine_options' */
    int32_t turn_token; /* -1: the model has none */
    uint64_t n_params, file_bytes;
    size_t kv_bytes;
    uint8_t model_print[FINGERPRINT_LEN], tokenizer_print[FINGERPRINT_LEN]; /* with a folder to save in */
};

/* Tokens of a prompt chunk: the engine's windows have room for one and a token for every row. */
#define LOAD_CHUNK_TOKENS 512u

/* cmd_serve_check.c: what can be told without the model: rules between settings, the files they name, the
 * keys, the addresses; try_bind: also whether they are free now. *ret_keys is freed with free(). err says
 * what to do. */
int check_settings(const struct config *c, bool try_bind, struct http_key **ret_keys, size_t *ret_n_keys,
                   char *err, size_t errlen);
/* The keys and the addresses alone: what a reload can change of these. */
int check_keys(const struct config *c, bool try_bind, struct http_key **ret_keys, size_t *ret_n_keys,
               char *err, size_t errlen);
/* Opens the folder of saved conversations, in which files can be made; -1 where none is named. */
int check_save_dir(const struct config *c, int *ret_dir, char *err, size_t errlen);
/* How many groups the slots are divided into, and whether windows are padded, which needs groups of at most
 * 256 slots. */
int check_windows(const struct config *c, uint32_t *ret_groups, bool *ret_padded, char *err, size_t errlen);
/* As load_model, but of the weights a sample only; ret is for loaded_clear too. 1, with err saying so, when
 * no model is named and none is in ./models, then the template and the device are checked; or when as much
 * memory as it takes is not free now. */
int check_model(const struct config *c, struct loaded *ret, char *err, size_t errlen);
/* All or nothing; err says what to do. loaded_clear frees what load_model has filled. Settings must have been
 * checked. */
int load_model(const struct config *c, struct loaded *ret, char *err, size_t errlen);
void loaded_clear(struct loaded *l);
/* What engine.device means here, "cpu" or "cuda", with the bytes that are free on CUDA devices. On success
 * err says why auto is not what the build could have, or is empty. -ENODEV. */
int choose_device(const struct config *c, const char **ret_device, uint64_t *ret_memory, char *err,
                  size_t errlen);
/* Threads for the engine: those that the config names, else the cores there are, as far as it takes them. */
uint32_t engine_threads(const struct config *c);

/* cmd_machine.c: bytes of memory this process may still take (the machine's and its control group's), 0 when
 * unknown; and the cores it may use, at least 1. */
uint64_t machine_memory_available(void);
uint32_t machine_cores(void);
