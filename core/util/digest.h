/* Digest: SHA-256 (FIPS 180-4) and comparison in constant time. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIGEST_LEN 32

void digest_sha256(const void *data, size_t len, uint8_t ret_digest[DIGEST_LEN]);
/* Lower-case hex, 64 characters and a zero byte. */
void digest_hex(const uint8_t digest[DIGEST_LEN], char ret_hex[2 * DIGEST_LEN + 1]);
/* True when equal; the time taken does not depend on where they differ. */
bool digest_equal(const uint8_t a[DIGEST_LEN], const uint8_t b[DIGEST_LEN]);
