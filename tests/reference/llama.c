/* Llama: tests/reference/logits.c once more, computed by llama.cpp: token ids come in on standard input,
 * float32 logits, [position][vocabulary], go out on standard output. Not part of the build:
 * tools/compare-llama compiles it against a llama.cpp that is at hand.
 *
 *     logits_llama FILE [threads] */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST 65536
#define CHUNK 64

static void quiet(enum ggml_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

int main(int argc, char **argv)
{
    static llama_token ids[MOST];
    int n = 0, threads = argc > 2 ? atoi(argv[2]) : 2;
    while (n < MOST && scanf("%d", &ids[n]) == 1)
        n++;
    if (argc < 2 || !n)
        return 1;
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)n + CHUNK;
    params.n_batch = params.n_ubatch = CHUNK;
    params.n_threads = params.n_threads_batch = threads;
    struct llama_context *context = model ? llama_init_from_model(model, params) : NULL;
    if (!context)
        return 1;
    size_t vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_batch batch = llama_batch_init(CHUNK, 0, 1);
    for (int at = 0; at < n; at += batch.n_tokens) {
        batch.n_tokens = n - at < CHUNK ? n - at : CHUNK;
        for (int i = 0; i < batch.n_tokens; i++) {
            batch.token[i] = ids[at + i];
            batch.pos[i] = at + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        if (llama_decode(context, batch))
            return 1;
        for (int i = 0; i < batch.n_tokens; i++)
            if (fwrite(llama_get_logits_ith(context, i), sizeof(float), vocab, stdout) != vocab)
                return 1;
    }
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
