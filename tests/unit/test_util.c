/* Tests of core/util: log, buf, clock, rng, utf8, queue, digest, file. JSON has its own file, test_jsonx.c.
 */
#include "util/buf.h"
#include "util/clock.h"
#include "util/digest.h"
#include "util/file.h"
#include "util/log.h"
#include "util/queue.h"
#include "util/rng.h"
#include "util/utf8.h"
#include "util/wrap.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- wrap ---- */

static char *wrapped(const char *text, unsigned column, unsigned indent, bool words)
{
    char *out = NULL;
    size_t len;
    FILE *f = open_memstream(&out, &len);

    if (words)
        wrap_words(f, text, column, indent);
    else
        wrap_text(f, text);
    fclose(f);
    return out;
}

Test(wrap, lines_are_as_long_as_they_may_be_and_no_longer)
{
    char text[200], want[220];

    /* Four words that fill a line to its last column, and the same with one letter more. */
    memset(text, 'x', sizeof text);
    text[19] = text[39] = text[59] = ' ';
    for (int more = 0; more < 2; more++) {
        text[80 + more] = '\0';
        snprintf(want, sizeof want, more ? "%.59s\n   %s\n" : "%s\n", text, text + 60);
        char *out = wrapped(text, 0, 3, true);
        cr_expect_str_eq(out, want);
        free(out);
        text[80] = 'x';
    }
    /* A word that fits nowhere stands alone; what was printed before counts. */
    memset(text, 'y', 100);
    memcpy(text, "a ", 2);
    text[100] = '\0';
    snprintf(want, sizeof want, "a\n  %s\n", text + 2);
    char *out = wrapped(text, 79, 2, true);
    cr_expect_str_eq(out, want);
    free(out);
}

Test(wrap, paragraphs_are_joined_and_indented_lines_stay)
{
    char *out = wrapped("one\ntwo   three\n\nfour\n  as  it is\n\n  this too\nfive", 0, 0, false);

    cr_expect_str_eq(out, "one two three\n\nfour\n  as  it is\n\n  this too\nfive\n");
    free(out);
    out = wrapped("\u00e9", 0, 0, false);
    cr_expect_str_eq(out, "\u00e9\n");
    free(out);
}

/* ---- buf ---- */

Test(buf, appends_of_every_kind_make_one_text)
{
    struct buf b = { 0 };

    buf_puts(&b, "one");
    buf_putc(&b, ' ');
    buf_append(&b, "t\0o", 3);
    buf_printf(&b, " %d-%s", 3, "x");
    cr_assert_not(b.failed);
    cr_expect_eq(b.len, 11);
    cr_expect_arr_eq(b.data, "one t\0o 3-x", 12, "a zero byte follows the text");
    buf_consume(&b, 4);
    cr_expect_arr_eq(b.data, "t\0o 3-x", 8);
    buf_free(&b);
    cr_expect_null(b.data);
}

Test(buf, grows_to_many_times_its_first_size)
{
    struct buf b = { 0 };

    for (int i = 0; i < 100000; i++)
        buf_putc(&b, (char)('a' + i % 26));
    cr_assert_eq(b.len, 100000);
    for (size_t i = 0; i < b.len; i++)
        cr_assert_eq(b.data[i], (char)('a' + i % 26));
    buf_free(&b);
}

Test(buf, a_bound_is_kept_and_the_failure_remembered)
{
    struct buf b = { .max = 5 };

    buf_puts(&b, "12345");
    cr_expect_not(b.failed, "the bound itself is allowed");
    buf_putc(&b, '6');
    cr_expect(b.failed);
    buf_consume(&b, 5);
    buf_puts(&b, "x");
    cr_expect_eq(b.len, 0, "nothing is appended after a failure");
    buf_clear(&b);
    buf_printf(&b, "%s", "ok");
    cr_expect_str_eq(b.data, "ok");
    buf_printf(&b, "%s", "too long");
    cr_expect_null(buf_steal(&b, NULL));
    cr_expect_null(b.data);
}

Test(buf, stealing_hands_over_the_bytes)
{
    struct buf b = { 0 };
    size_t len = 99;
    char *text = buf_steal(&b, &len);

    cr_assert_not_null(text, "an empty buffer did not fail");
    cr_expect_str_eq(text, "");
    cr_expect_eq(len, 0);
    free(text);
    buf_puts(&b, "abc");
    text = buf_steal(&b, &len);
    cr_expect_str_eq(text, "abc");
    cr_expect_eq(len, 3);
    cr_expect_eq(b.len, 0);
    free(text);
}

Test(buf, an_impossible_length_fails_without_allocating)
{
    struct buf b = { 0 };

    buf_puts(&b, "abc");
    buf_append(&b, "", SIZE_MAX - 2);
    cr_expect(b.failed);
    cr_expect_str_eq(b.data, "abc");
    buf_free(&b);
}

/* ---- clock, rng, digest ---- */

Test(clock, the_monotonic_clock_does_not_go_back_and_the_wall_clock_is_this_century)
{
    uint64_t last = clock_now_ns();

    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_now_ns();

        cr_assert_geq(now, last);
        last = now;
    }
    cr_expect_gt(clock_wall_ns(), 1700000000ull * NS_PER_S);
    cr_expect_lt(clock_wall_ns(), 4200000000ull * NS_PER_S);
}

/* Philox 4x32-10 written from the paper once more, with all four counter words, so that the published vectors
 * with non-zero upper words prove this stand-in, and the stand-in proves ours wherever ours can reach. */
static void philox_again(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4], k[2] = { key[0], key[1] };

    memcpy(c, counter, sizeof c);
    for (int r = 0; r < 10; r++) {
        __uint128_t lo = (__uint128_t)3528531795u * c[0], hi = (__uint128_t)3449720151u * c[2];
        uint32_t next[4] = { (uint32_t)(hi >> 32) ^ c[1] ^ k[0], (uint32_t)hi,
                             (uint32_t)(lo >> 32) ^ c[3] ^ k[1], (uint32_t)lo };

        memcpy(c, next, sizeof c);
        k[0] += 2654435769u;
        k[1] += 3144134277u;
    }
    memcpy(out, c, sizeof c);
}

Test(rng, philox_gives_the_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } known[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u }, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    uint32_t words[4], again[4];

    for (size_t i = 0; i < 3; i++) {
        philox_again(known[i].counter, known[i].key, again);
        cr_expect_arr_eq(again, known[i].answer, sizeof again, "published vector %zu", i);
    }
    rng_philox(0, 0, words);
    cr_expect_arr_eq(words, known[0].answer, sizeof words);
    for (uint64_t i = 1; i < 200; i++) {
        uint64_t seed = i * 0x9E3779B97F4A7C15ull, at = i * i * 0xD1B54A32D192ED03ull;

        rng_philox(seed, at, words);
        philox_again((uint32_t[]){ (uint32_t)at, (uint32_t)(at >> 32), 0, 0 },
                     (uint32_t[]){ (uint32_t)seed, (uint32_t)(seed >> 32) }, again);
        cr_assert_arr_eq(words, again, sizeof words);
    }
}

Test(rng, uniform_numbers_fill_the_interval_evenly)
{
    unsigned bins[16] = { 0 };
    double sum = 0;

    for (uint64_t i = 0; i < 16000; i++) {
        double u = rng_uniform(7, i);

        cr_assert(u >= 0 && u < 1);
        cr_assert_eq(u, rng_uniform(7, i), "a function of seed and counter alone");
        bins[(int)(u * 16)]++;
        sum += u;
    }
    cr_expect_float_eq(sum / 16000, 0.5, 0.01);
    for (int i = 0; i < 16; i++)
        cr_expect(bins[i] > 850 && bins[i] < 1150, "bin %d holds %u of 1000 expected", i, bins[i]);
    cr_expect_neq(rng_uniform(7, 1), rng_uniform(8, 1));
}

Test(rng, system_seeds_differ)
{
    cr_expect_neq(rng_system_seed(), rng_system_seed());
}

static const char *sha256_hex(const void *data, size_t len, char hex[2 * DIGEST_LEN + 1])
{
    uint8_t digest[DIGEST_LEN];

    digest_sha256(data, len, digest);
    digest_hex(digest, hex);
    return hex;
}

Test(digest, sha256_gives_the_standards_answers)
{
    char hex[2 * DIGEST_LEN + 1], *million = malloc(1000000);

    cr_expect_str_eq(sha256_hex("", 0, hex),
                     "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    cr_expect_str_eq(sha256_hex("abc", 3, hex),
                     "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    cr_expect_str_eq(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex),
                     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(million, 'a', 1000000);
    cr_expect_str_eq(sha256_hex(million, 1000000, hex),
                     "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

/* Made with Python's hashlib: sha256 over the concatenation of sha256(b"x" * n) for n in 0..199, which
 * crosses every border of the padding three times. */
Test(digest, every_length_of_the_last_block_is_padded_right)
{
    char text[200], hex[2 * DIGEST_LEN + 1];
    uint8_t all[200 * DIGEST_LEN];

    memset(text, 'x', sizeof text);
    for (size_t n = 0; n < 200; n++)
        digest_sha256(text, n, all + n * DIGEST_LEN);
    cr_expect_str_eq(sha256_hex(all, sizeof all, hex),
                     "f5e61141898898cdabae3590cb32e1901b40bdc59952302926213a44c105c129");
}

Test(digest, equality_sees_every_single_bit)
{
    uint8_t a[DIGEST_LEN], b[DIGEST_LEN];

    digest_sha256("a", 1, a);
    memcpy(b, a, sizeof b);
    cr_expect(digest_equal(a, b));
    for (int bit = 0; bit < DIGEST_LEN * 8; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_expect_not(digest_equal(a, b), "bit %d", bit);
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* ---- utf8 ---- */

/* The loops below compare in plain C and assert only where something differs: an assertion costs a
 * microsecond. */
Test(utf8, every_code_point_survives_and_surrogates_do_not)
{
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        char text[4];
        uint32_t back = ~0u;
        unsigned n = utf8_encode(cp, text);
        bool surrogate = cp >= 0xD800 && cp <= 0xDFFF;
        unsigned got = utf8_decode(text, n, &back);

        if (got != (surrogate ? 0 : n) || (!surrogate && back != cp) || utf8_valid(text, n) == surrogate)
            cr_assert_fail("U+%04X", cp);
        if (n > 1 && utf8_decode(text, n - 1, &back) != 0)
            cr_assert_fail("U+%04X cut short", cp);
    }
}

/* Whether bytes are one well-formed sequence, by the definition: the shortest form of a scalar value. */
static bool is_sequence(const unsigned char *p, size_t n)
{
    static const unsigned char mark[5] = { 0, 0, 0xC0, 0xE0, 0xF0 }, mask[5] = { 0, 0x80, 0xE0, 0xF0, 0xF8 };
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t cp;

    if ((p[0] & mask[n]) != mark[n])
        return false;
    cp = p[0] & (unsigned char)~mask[n];
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return false;
        cp = cp << 6 | (p[i] & 0x3F);
    }
    return cp >= least[n] && cp <= 0x10FFFF && !(cp >= 0xD800 && cp <= 0xDFFF);
}

Test(utf8, three_byte_texts_are_judged_as_the_definition_says)
{
    for (uint32_t v = 0x7E0000; v < 1u << 24; v++) {
        unsigned char t[3] = { (unsigned char)(v >> 16), (unsigned char)(v >> 8), (unsigned char)v };
        uint32_t cp;
        unsigned want = is_sequence(t, 1) ? 1 : is_sequence(t, 2) ? 2 : is_sequence(t, 3) ? 3 : 0;

        if (utf8_decode((const char *)t, 3, &cp) != want)
            cr_assert_fail("%02x %02x %02x", t[0], t[1], t[2]);
    }
}

Test(utf8, four_byte_texts_are_judged_as_the_definition_says)
{
    for (unsigned a = 0xEF; a <= 0xFF; a++)
        for (unsigned b = 0; b <= 0xFF; b++)
            for (unsigned c = 0x7E; c <= 0xC1; c++)
                for (unsigned d = 0x7E; d <= 0xC1; d++) {
                    unsigned char t[4] = { (unsigned char)a, (unsigned char)b, (unsigned char)c,
                                           (unsigned char)d };
                    uint32_t cp;

                    if ((utf8_decode((const char *)t, 4, &cp) == 4) != is_sequence(t, 4))
                        cr_assert_fail("%02x %02x %02x %02x", a, b, c, d);
                }
}

/* A tail is incomplete when some continuation makes it whole: tried with both ends of every range the
 * definition knows. */
static bool can_be_completed(const unsigned char *tail, size_t n)
{
    static const unsigned char ends[6] = { 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF };
    unsigned char t[6] = { 0 };

    memcpy(t, tail, n);
    for (unsigned more = 0; more < 6 * 6 * 6; more++) {
        t[n] = ends[more % 6];
        t[n + 1] = ends[more / 6 % 6];
        t[n + 2] = ends[more / 36];
        for (size_t len = n + 1; len <= 4; len++)
            if (is_sequence(t, len))
                return true;
    }
    return false;
}

Test(utf8, an_incomplete_tail_is_what_more_bytes_could_complete)
{
    for (unsigned a = 0; a <= 0xFF; a++) {
        unsigned char one[2] = { 'x', (unsigned char)a };

        cr_assert_eq(utf8_incomplete_tail((char *)one, 2), can_be_completed(one + 1, 1) ? 1 : 0, "%02x", a);
        for (unsigned b = 0x7F; b <= 0xC2; b++) {
            unsigned char two[3] = { 'x', (unsigned char)a, (unsigned char)b };
            size_t want = a >= 0xC0 && can_be_completed(two + 1, 2) ? 2
                          : can_be_completed(two + 2, 1)            ? 1
                                                                    : 0;

            if (utf8_incomplete_tail((char *)two, 3) != want)
                cr_assert_fail("%02x %02x", a, b);
        }
    }
    cr_expect_eq(utf8_incomplete_tail("\xF0\x9F\x98", 3), 3);
    cr_expect_eq(utf8_incomplete_tail("\xF0\x9F\x98\x80", 4), 0);
    cr_expect_eq(utf8_incomplete_tail("\x98\x80\x80\x80", 4), 0);
    cr_expect_eq(utf8_incomplete_tail("", 0), 0);
}

/* ---- queue ---- */

Test(queue, keeps_order_refuses_when_full_and_its_eventfd_tells)
{
    struct queue *q;
    int items[3];
    struct pollfd p;

    cr_assert_eq(queue_new(2, &q), 0);
    p = (struct pollfd){ .fd = queue_fd(q), .events = POLLIN };
    cr_expect_eq(poll(&p, 1, 0), 0);
    cr_expect_eq(queue_wait(q, 0), 0);
    cr_expect_null(queue_pop(q));
    for (int round = 0; round < 5; round++) {
        cr_expect_eq(queue_push(q, &items[0]), 0);
        cr_expect_eq(queue_push(q, &items[1]), 0);
        cr_expect_eq(queue_push(q, &items[2]), -ENOSPC);
        cr_expect_eq(queue_len(q), 2);
        cr_expect_eq(queue_wait(q, -1), 1);
        cr_expect_eq(queue_pop(q), &items[0]);
        cr_expect_eq(poll(&p, 1, 0), 1, "one is left");
        cr_expect_eq(queue_pop(q), &items[1]);
        cr_expect_eq(poll(&p, 1, 0), 0, "empty");
    }
    queue_free(q);
    queue_free(NULL);
}

enum { PRODUCERS = 4, PER_PRODUCER = 5000 };

struct producer {
    struct queue *q;
    uintptr_t id;
};

static void *produce(void *arg)
{
    struct producer *p = arg;

    for (uintptr_t i = 1; i <= PER_PRODUCER; i++)
        while (queue_push(p->q, (void *)(p->id << 32 | i)) == -ENOSPC)
            sched_yield();
    return NULL;
}

Test(queue, many_producers_lose_nothing_and_each_keeps_its_order)
{
    pthread_t threads[PRODUCERS];
    struct producer producers[PRODUCERS];
    uintptr_t last[PRODUCERS] = { 0 };
    struct queue *q;

    cr_assert_eq(queue_new(16, &q), 0);
    for (uintptr_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){ q, i };
        pthread_create(&threads[i], NULL, produce, &producers[i]);
    }
    for (int n = 0; n < PRODUCERS * PER_PRODUCER;) {
        uintptr_t item;

        cr_assert_eq(queue_wait(q, 10000), 1, "stuck after %d", n);
        while ((item = (uintptr_t)queue_pop(q))) {
            cr_assert_eq((item & 0xFFFFFFFF), last[item >> 32] + 1);
            last[item >> 32]++;
            n++;
        }
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    queue_free(q);
}

/* ---- log ---- */

struct capture {
    int saved, pipe[2];
};

static void capture_begin(struct capture *c)
{
    fflush(stderr);
    cr_assert_eq(pipe(c->pipe), 0);
    c->saved = dup(STDERR_FILENO);
    dup2(c->pipe[1], STDERR_FILENO);
    close(c->pipe[1]);
}

static size_t capture_end(struct capture *c, char *dst, size_t dstlen)
{
    size_t n = 0;
    ssize_t r;

    dup2(c->saved, STDERR_FILENO);
    close(c->saved);
    while (n + 1 < dstlen && (r = read(c->pipe[0], dst + n, dstlen - 1 - n)) > 0)
        n += (size_t)r;
    dst[n] = '\0';
    close(c->pipe[0]);
    return n;
}

static bool matches(const char *text, const char *pattern)
{
    regex_t re;
    bool found;

    cr_assert_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    found = regexec(&re, text, 0, NULL, 0) == 0;
    regfree(&re);
    return found;
}

Test(log, a_line_has_time_level_event_and_pairs)
{
    struct capture c;
    char text[4096];

    capture_begin(&c);
    log_write(LOG_INFO, "ready", "port=%d model=%s", 8080, "tiny");
    log_write(LOG_DEBUG, "hidden", "x=1");
    log_write(LOG_WARN, "bare", "%s", "");
    capture_end(&c, text, sizeof text);
    cr_expect(
        matches(text, "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z info ready port=8080 model=tiny\n"),
        "%s", text);
    cr_expect_null(strstr(text, "hidden"));
    cr_expect(matches(text, "Z warn bare ?\n$"), "%s", text);
}

Test(log, an_entry_is_one_line_whatever_it_holds)
{
    struct capture c;
    char text[4096], quoted[64];

    capture_begin(&c);
    log_write(LOG_ERROR, "got", "text=%s", log_quote(quoted, sizeof quoted, "a\"b\\c\nd\x1b[0m\x7f\te"));
    capture_end(&c, text, sizeof text);
    cr_expect(strstr(text, "error got text=\"a\\\"b\\\\c\\nd\\x1b[0m\\x7f\\te\"\n") != NULL, "%s", text);
    cr_expect_eq(strchr(text, '\n'), text + strlen(text) - 1);
}

Test(log, an_entry_is_utf_8_whatever_it_holds)
{
    struct capture c;
    char text[4096], quoted[64];

    capture_begin(&c);
    log_write(LOG_INFO, "got", "path=%s",
              log_quote(quoted, sizeof quoted, "/\xF7\xC3\xA9\xC3/\xE2\x82\xAC\xED\xA0\x80"));
    capture_end(&c, text, sizeof text);
    cr_expect(strstr(text, "info got path=\"/\\xf7\xC3\xA9\\xc3/\xE2\x82\xAC\\xed\\xa0\\x80\"\n") != NULL,
              "%s", text);
}

Test(log, a_long_line_is_cut_between_characters)
{
    struct capture c;
    char *big = malloc(30001), text[20000];
    size_t n;

    for (int i = 0; i < 15000; i++)
        memcpy(big + 2 * i, "\xC3\xA9", 2);
    big[30000] = '\0';
    for (int shift = 0; shift < 2; shift++) {
        capture_begin(&c);
        log_write(LOG_WARN, shift ? "ab" : "a", "x=%s", big);
        n = capture_end(&c, text, sizeof text);
        cr_expect(n <= 8192 && n > 8180, "%zu", n);
        cr_expect_eq(text[n - 1], '\n');
        cr_expect(utf8_valid(text, n));
    }
    free(big);
}

Test(log, quoting_fits_any_buffer)
{
    for (size_t n = 1; n < 16; n++) {
        char dst[17];

        memset(dst, '#', sizeof dst);
        log_quote(dst, n, "\xC3\xA9\"\\\xC3\xA9xyz");
        cr_expect_eq(dst[n], '#', "size %zu", n);
        cr_expect_lt(strlen(dst), n);
        cr_expect(utf8_valid(dst, strlen(dst)));
        cr_expect(n < 3 || (dst[0] == '"' && dst[strlen(dst) - 1] == '"'));
    }
}

Test(log, levels_have_names)
{
    enum log_level level = LOG_INFO;

    cr_expect_eq(log_level_parse("error", &level), 0);
    cr_expect_eq(level, LOG_ERROR);
    cr_expect_eq(log_level_parse("debug", &level), 0);
    cr_expect_eq(level, LOG_DEBUG);
    cr_expect_eq(log_level_parse("loud", &level), -EINVAL);
    cr_expect_eq(level, LOG_DEBUG);
    log_level_set(LOG_WARN);
    cr_expect_eq(log_level_get(), LOG_WARN);
}

Test(utf8, mending_touches_what_is_wrong_alone)
{
    static const struct {
        const char *text, *mended;
    } cases[] = {
        { "", "" },
        { "plain", "plain" },
        { "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80" },
        { "cut \xD1", "cut ?" },
        { "cut \xF0\x9F\x98", "cut ???" },
        { "\xFF\xFE", "??" },
        { "a\xC0\xAF"
          "b\xC3\xA9\xA9",
          "a??b\xC3\xA9?" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];

        snprintf(text, sizeof text, "%s", cases[i].text);
        utf8_mend(text);
        cr_expect_str_eq(text, cases[i].mended);
        cr_expect(utf8_valid(text, strlen(text)));
    }
}

/* ---- files ---- */

static int read_path(const char *path, size_t max, char *text, size_t size, char *err, size_t errlen)
{
    struct buf b = { 0 };
    int r = file_read(path, max, &b, err, errlen);

    snprintf(text, size, "%s", b.data ? b.data : "");
    buf_free(&b);
    return r;
}

Test(file, what_is_no_small_file_is_refused_and_named)
{
    char text[64], err[256] = "";

    cr_expect_eq(read_path("/nonexistent/x", 10, text, sizeof text, err, sizeof err), -ENOENT);
    cr_expect_str_eq(err, "/nonexistent/x: No such file or directory");
    cr_expect_eq(read_path("/tmp", 10, text, sizeof text, err, sizeof err), -EISDIR);
    cr_expect_str_eq(err, "/tmp: is a directory where a file is wanted");
    cr_expect_eq(read_path("/dev/zero", 100000, text, sizeof text, err, sizeof err), -EFBIG);
    cr_expect_str_eq(err, "/dev/zero: longer than 100000 bytes");
    cr_expect_eq(read_path("/dev/null", 0, text, sizeof text, err, sizeof err), 0);
}

Test(file, a_file_may_be_as_long_as_allowed)
{
    char path[] = "/tmp/berth-file-XXXXXX", text[64], err[256] = "";
    int fd = mkstemp(path);

    cr_assert_eq(write(fd, "0123456789", 10), 10);
    cr_expect_eq(read_path(path, 10, text, sizeof text, err, sizeof err), 0, "%s", err);
    cr_expect_str_eq(text, "0123456789");
    cr_expect_eq(read_path(path, 9, text, sizeof text, err, sizeof err), -EFBIG);
    close(fd);
    unlink(path);
}

static void *write_late(void *arg)
{
    int fd = *(int *)arg;

    for (int i = 0; i < 3; i++) {
        usleep(20000); /* so that the reader has to wait */
        if (write(fd, "abc", 3) != 3)
            break;
    }
    close(fd);
    return NULL;
}

Test(file, a_pipe_is_read_to_its_end)
{
    char path[64], text[64], err[256] = "";
    pthread_t writer;
    int ends[2];

    cr_assert_eq(pipe(ends), 0);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    cr_assert_eq(pthread_create(&writer, NULL, write_late, &ends[1]), 0);
    cr_expect_eq(read_path(path, 10, text, sizeof text, err, sizeof err), 0, "%s", err);
    cr_expect_str_eq(text, "abcabcabc");
    pthread_join(writer, NULL);
    close(ends[0]);
}

Test(file, a_pipe_that_does_not_end_is_not_waited_for_for_ever, .timeout = 60)
{
    char path[64], text[64], err[256] = "";
    int ends[2];

    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], "abc", 3), 3);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    cr_expect_eq(read_path(path, 10, text, sizeof text, err, sizeof err), -ETIMEDOUT);
    cr_expect_not_null(strstr(err, "a pipe whose writer was not done within 5 s"), "%s", err);
}
