/* Fingerprint: what tells one model from another, and one tokenizer from another, without reading all of the
 * file. Pure; the file is read only. Tests: tests/unit/test_gguf.c */
#pragma once
#include "model/gguf.h"

#define FINGERPRINT_LEN 32

/* Of all that decides what the network computes: its metadata, the table of tensors, and samples from all
 * over each of them. Names and remarks about the file do not count. -ENOMEM. */
int fingerprint_model(const struct gguf *f, uint8_t ret[FINGERPRINT_LEN]);
/* Of all that decides which tokens a text becomes; the chat template does not count. -ENOMEM. */
int fingerprint_tokenizer(const struct gguf *f, uint8_t ret[FINGERPRINT_LEN]);
