/* Slot io: a conversation goes to a file and comes back, into another server too, and what follows is the
 * same as if it had never left; whatever goes wrong the slot is as it was; streams go on meanwhile. */
#include "sched/private.h"
#include "sched/slotio.h"
#include "sched_rig.h"
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char folder[64];
static struct slotfile_kind kind;
static struct sched_slot_done done;
static char err[400];

static struct rig open_rig(const struct sched_options *o, uint32_t kv_tokens)
{
    struct rig r = rig_open(o, kv_tokens);
    fingerprint_model(r.f, kind.model);
    fingerprint_tokenizer(r.f, kind.tokenizer);
    sched_slot_kind(r.e, "tiny", &kind);
    return r;
}

static void open_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/berth-slotio-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static void close_folder(void)
{
    char path[400];
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    closedir(d);
    rmdir(folder);
}

TestSuite(slotio, .init = open_folder, .fini = close_folder, .timeout = 120);

static struct sched_slot_call call_of(int32_t slot, const char *name)
{
    static int dir = -1;
    if (dir < 0)
        dir = open(folder, O_RDONLY | O_DIRECTORY);
    return (struct sched_slot_call){ .slot = slot, .dir = dir, .name = name, .kind = &kind };
}

static int save(struct rig *r, int32_t slot, const char *name)
{
    struct sched_slot_call c = call_of(slot, name);
    *err = 0;
    int rc = sched_slot_save(r->s, &c, &done, err, sizeof err);
    cr_expect_eq(rc < 0, *err != 0, "%d \"%s\"", rc, err);
    return rc;
}

static int restore(struct rig *r, int32_t slot, const char *name)
{
    struct sched_slot_call c = call_of(slot, name);
    *err = 0;
    int rc = sched_slot_restore(r->s, &c, &done, err, sizeof err);
    cr_expect_eq(rc < 0, *err != 0, "%d \"%s\"", rc, err);
    return rc;
}

static int erase(struct rig *r, int32_t slot, uint32_t *n)
{
    return sched_slot_erase(r->s, slot, n, err, sizeof err);
}

static struct sched_slot_status slot_of(struct rig *r, uint32_t i)
{
    struct sched_status *st = sched_status_get(r->s);
    struct sched_slot_status slot = st->slot[i];
    free(st);
    return slot;
}

/* Runs a job in that slot. */
static void talk(struct rig *r, const int32_t *tokens, size_t n, uint32_t max_new, int32_t slot,
                 uint64_t salt, struct heard *h)
{
    heard_init(h);
    struct sched_job job = job_of(tokens, n, max_new, h);
    job.id_slot = slot;
    job.salt = salt;
    run_job(r, &job);
}

Test(slotio, what_follows_a_restore_is_as_if_it_had_never_left)
{
    struct rig r = open_rig(&rig_options, 2048);
    int32_t *prompt = prompt_of(1, 150);
    struct heard first, next, cold;
    talk(&r, prompt, 150, 20, 3, 0, &first);
    struct sched_slot_status before = slot_of(&r, 3);
    cr_assert_eq(save(&r, 3, "a"), 0, "%s", err);
    cr_expect_eq(done.tokens, 169);
    cr_expect_eq(done.turns, 1);
    struct stat st;
    cr_assert_eq(fstatat(call_of(3, "a").dir, "a", &st, 0), 0);
    cr_expect_eq((uint64_t)st.st_size, done.bytes);
    rig_close(&r);

    r = open_rig(&rig_options, 2048);
    size_t n;
    int32_t *more = next_turn(prompt, 150, &first, 9, 30, &n);
    cr_assert_eq(restore(&r, 5, "a"), 0, "%s", err);
    cr_expect_eq(done.tokens, 169);
    struct sched_slot_status after = slot_of(&r, 5);
    cr_expect(after.tokens == before.tokens && after.turn_tokens == before.turn_tokens &&
              after.turns == before.turns && strcmp(after.stop_reason, before.stop_reason) == 0);
    cr_expect_eq(after.client_key, 0);
    cr_expect_neq(after.last_use_ns, 0, "to restore is to use");
    talk(&r, more, n, 20, -1, 0, &next);
    cr_expect_eq(next.timings.cached, 169);
    rig_close(&r);

    r = open_rig(&rig_options, 2048);
    talk(&r, more, n, 20, -1, 0, &cold);
    cr_expect_eq(cold.timings.cached, 0);
    expect_same(&next, &cold, "restored and cold");
    rig_close(&r);
    heard_clear(&first);
    heard_clear(&next);
    heard_clear(&cold);
    free(more);
    free(prompt);
}

Test(slotio, main_is_a_place_too_and_a_slot_is_emptied)
{
    struct rig r = open_rig(&rig_options, 2048);
    int32_t *prompt = prompt_of(2, 100);
    struct heard h;
    uint32_t n = 1;
    char text[400];
    talk(&r, prompt, 100, 10, -1, 0, &h);
    heard_clear(&h);
    cr_assert_eq(save(&r, SCHED_MAIN, "main"), 0, "%s", err);
    cr_expect_eq(done.tokens, 109);
    uint64_t before = last_placement(&r);
    cr_assert_eq(erase(&r, SCHED_MAIN, &n), 0);
    cr_expect_eq(n, 109);
    cr_assert_eq(erase(&r, SCHED_MAIN, &n), 0);
    cr_expect_eq(n, 0);
    cr_expect_eq(save(&r, SCHED_MAIN, "main"), -ENODATA);
    cr_expect_str_eq(err, "main: it holds nothing");
    cr_assert_eq(restore(&r, SCHED_MAIN, "main"), 0, "%s", err);
    cr_assert_eq(restore(&r, 2, "main"), 0, "%s", err);
    placements(&r, before, text, sizeof text);
    cr_expect_str_eq(text, "erase main<- 109, erase main<- 0, load main<- 109, load 2<- 109");
    talk(&r, prompt, 100, 10, -1, 0, &h);
    cr_expect_eq(h.timings.cached, 99);
    heard_clear(&h);
    cr_expect_eq(erase(&r, 8, &n), 0, "index 8 is main's");
    cr_expect_eq(erase(&r, 9, &n), -EINVAL);
    rig_close(&r);
    free(prompt);
}

Test(slotio, a_slot_at_work_is_left_alone)
{
    struct rig r = open_rig(&rig_options, 2048);
    int32_t *prompt = prompt_of(3, 100), *other = prompt_of(4, 100);
    struct heard h, h2;
    uint32_t n;
    talk(&r, other, 100, 5, 1, 0, &h2);
    heard_clear(&h2);
    cr_assert_eq(save(&r, 1, "b"), 0, "%s", err);
    heard_init(&h);
    struct sched_job job = job_of(prompt, 100, 100, &h);
    job.id_slot = 1;
    rig_hold(&r, &job);
    cr_expect_eq(save(&r, 1, "c"), -EBUSY);
    cr_expect_str_eq(err, "slot 1: a request runs there");
    cr_expect_eq(restore(&r, 1, "b"), -EBUSY);
    cr_expect_eq(erase(&r, 1, &n), -EBUSY);
    cr_expect(slot_of(&r, 1).busy);
    sched_cancel(r.s, h.job);
    heard_wait(&h, HEARD_DONE);
    cr_expect_eq(slot_of(&r, 1).tokens, 100 + h.timings.generated - 1);
    heard_clear(&h);
    rig_close(&r);
    free(prompt);
    free(other);
}

/* What a file lacks for being taken leaves the slot as it was. */
static void expect_unchanged(struct rig *r, int rc, const char *word, const struct sched_slot_status *was)
{
    struct sched_slot_status is = slot_of(r, 1);
    cr_expect_lt(rc, 0);
    cr_expect(strstr(err, word), "\"%s\" does not say \"%s\"", err, word);
    cr_expect(is.tokens == was->tokens && is.turns == was->turns && is.request == was->request &&
                  is.last_use_ns == was->last_use_ns,
              "%s: the slot changed", word);
}

static void damage(const char *name, off_t at)
{
    char c;
    int fd = openat(call_of(0, name).dir, name, O_RDWR);
    cr_assert_eq(pread(fd, &c, 1, at), 1);
    c ^= 1;
    cr_assert_eq(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

Test(slotio, a_file_that_is_not_right_changes_nothing)
{
    struct rig r = open_rig(&rig_options, 2048);
    int32_t *prompt = prompt_of(5, 300), *other = prompt_of(6, 100);
    struct heard h;
    talk(&r, prompt, 300, 5, 0, 7, &h);
    heard_clear(&h);
    talk(&r, other, 100, 5, 1, 0, &h);
    heard_clear(&h);
    struct sched_slot_status was = slot_of(&r, 1);
    cr_assert_eq(save(&r, 0, "a"), 0, "%s", err);
    expect_unchanged(&r, restore(&r, 1, "none"), "No such file", &was);

    uint64_t salt = 8;
    struct sched_slot_call c = call_of(1, "a");
    c.salt = &salt;
    expect_unchanged(&r, sched_slot_restore(r.s, &c, &done, err, sizeof err), "another salt", &was);

    struct slotfile_kind right = kind;
    kind.model[0]++;
    expect_unchanged(&r, restore(&r, 1, "a"), "another model", &was);
    kind = right;
    kind.tokenizer[0]++;
    expect_unchanged(&r, restore(&r, 1, "a"), "another tokenizer", &was);
    kind = right;
    memcpy(kind.kv_type, "f32", 4);
    expect_unchanged(&r, restore(&r, 1, "a"), "keys and values", &was);
    kind = right;
    cr_assert_eq(save(&r, 0, "last"), 0);
    damage("last", (off_t)done.bytes - 9); /* of the last piece: most of it has come in by then */
    expect_unchanged(&r, restore(&r, 1, "last"), "tokens 256 to 303 are damaged", &was);
    expect_balance(&r);

    cr_expect_eq(restore(&r, 1, "a"), 0, "%s", err);
    /* Others' salts find nothing of it, its own all. */
    talk(&r, prompt, 300, 5, 4, 8, &h);
    cr_expect_eq(h.timings.cached, 0);
    heard_clear(&h);
    uint32_t n;
    cr_assert_eq(erase(&r, 0, &n), 0);
    talk(&r, prompt, 300, 5, 5, 7, &h);
    cr_expect_eq(h.timings.cached, 299);
    heard_clear(&h);
    rig_close(&r);
    free(prompt);
    free(other);
}

Test(slotio, a_full_disk_changes_nothing)
{
    struct rig r = open_rig(&rig_options, 2048);
    int32_t *prompt = prompt_of(7, 300);
    struct heard h;
    talk(&r, prompt, 300, 5, 0, 0, &h);
    heard_clear(&h);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = { 20000, RLIM_INFINITY };
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_expect_eq(save(&r, 0, "a"), -EFBIG);
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_expect_eq(faccessat(call_of(0, "a").dir, "a", F_OK, 0), -1);
    cr_expect_eq(save(&r, 0, "a"), 0, "the slot is there as before: %s", err);
    rig_close(&r);
    free(prompt);
}

/* ---- memory ---- */

Test(slotio, room_is_made_by_idle_histories_never_by_the_slot_itself)
{
    struct rig r = open_rig(&rig_options, 512); /* 8 blocks */
    int32_t *a = prompt_of(8, 250), *b = prompt_of(9, 120), *c = prompt_of(10, 120);
    struct heard h;
    uint32_t n;
    talk(&r, a, 250, 5, 0, 0, &h); /* 4 blocks */
    heard_clear(&h);
    cr_assert_eq(save(&r, 0, "a"), 0, "%s", err);
    cr_assert_eq(erase(&r, 0, &n), 0);
    talk(&r, b, 120, 5, 1, 0, &h);
    heard_clear(&h);
    talk(&r, c, 120, 5, 2, 0, &h);
    heard_clear(&h);
    talk(&r, c + 1, 119, 5, 3, 0, &h);
    heard_clear(&h);
    cr_assert_eq(restore(&r, 1, "a"), 0, "%s", err); /* 2 blocks are free, 4 wanted: others shrink */
    cr_expect_eq(slot_of(&r, 1).tokens, 254);
    cr_expect_eq(slot_of(&r, 2).tokens, 0, "the one that was used longest ago gave two");
    cr_expect_eq(slot_of(&r, 3).tokens, 123);
    rig_close(&r);

    r = open_rig(&rig_options, 512);
    talk(&r, c, 120, 200, 1, 0, &h); /* 5 blocks; 3 are free, 4 wanted */
    heard_clear(&h);
    cr_expect_eq(restore(&r, 1, "a"), -ENOMEM);
    cr_expect(strstr(err, "slot 1: the memory of conversations has no room for 254 tokens"), "%s", err);
    cr_expect_eq(slot_of(&r, 1).tokens, 319);
    cr_assert_eq(erase(&r, 1, &n), 0);
    cr_expect_eq(restore(&r, 1, "a"), 0, "%s", err);
    rig_close(&r);
    free(a);
    free(b);
    free(c);
}

/* ---- meanwhile ---- */

struct other {
    struct rig *r;
    struct sched_slot_call c;
    bool restores;
    int rc;
    char err[300];
    struct sched_slot_done done;
    atomic_bool ended;
    pthread_t thread;
};

static void *other_main(void *arg)
{
    struct other *o = arg;
    o->rc = o->restores ? sched_slot_restore(o->r->s, &o->c, &o->done, o->err, sizeof o->err)
                        : sched_slot_save(o->r->s, &o->c, &o->done, o->err, sizeof o->err);
    atomic_store(&o->ended, true);
    return NULL;
}

/* While windows stand before the gate nothing is answered: what comes next is known. */
static bool never(void *arg)
{
    (void)arg;
    return false;
}

static bool at_once(void *arg)
{
    (void)arg;
    return true;
}

Test(slotio, one_that_is_given_up_leaves_nothing)
{
    struct rig r = open_rig(&rig_options, 2048);
    int32_t *prompt = prompt_of(11, 200);
    struct heard h;
    talk(&r, prompt, 200, 5, 0, 0, &h);
    heard_clear(&h);
    cr_assert_eq(save(&r, 0, "a"), 0);
    struct sched_slot_call c = call_of(0, "b");
    c.stop = at_once;
    cr_expect_eq(sched_slot_save(r.s, &c, &done, err, sizeof err), -ECANCELED);
    cr_expect_eq(faccessat(c.dir, "b", F_OK, 0), -1);
    c.name = "a";
    c.slot = 1;
    cr_expect_eq(sched_slot_restore(r.s, &c, &done, err, sizeof err), -ECANCELED);
    cr_expect_eq(slot_of(&r, 1).tokens, 0);
    c.stop = never;
    cr_expect_eq(sched_slot_restore(r.s, &c, &done, err, sizeof err), 0, "%s", err);
    rig_close(&r);
    free(prompt);
}

/* Stands before the last call of a restore until it is told to go on. */
static struct {
    atomic_uint asked;
    atomic_bool go;
} halt;

static bool halted(void *arg)
{
    (void)arg;
    if (atomic_fetch_add(&halt.asked, 1) == 1)
        while (!atomic_load(&halt.go))
            sched_yield();
    return false;
}

Test(slotio, a_slot_that_is_saved_is_nobodys_not_even_by_its_number)
{
    struct rig r = open_rig(&rig_options, 2048);
    int32_t *a = prompt_of(17, 150), *b = prompt_of(18, 100);
    struct heard h;
    uint32_t n;
    talk(&r, a, 150, 5, 0, 0, &h);
    heard_clear(&h);
    struct other other = { .r = &r, .c = call_of(0, "a") };
    other.c.stop = halted;
    atomic_store(&halt.asked, 1); /* before the only piece */
    pthread_create(&other.thread, NULL, other_main, &other);
    while (atomic_load(&halt.asked) < 2)
        sched_yield();
    talk(&r, b, 100, 5, 0, 0, &h);
    cr_expect_gt(h.slot, 0, "slot %d", h.slot);
    heard_clear(&h);
    talk(&r, a, 150, 5, 0, 0, &h);
    cr_expect_eq(h.timings.cached, 149, "its prefix is there for all");
    heard_clear(&h);
    cr_expect_eq(save(&r, 1, "b"), -EBUSY);
    cr_expect_str_eq(err, "slot 1: slot 0 is being saved or restored, one at a time");
    cr_expect_eq(erase(&r, 0, &n), -EBUSY);
    cr_expect_str_eq(err, "slot 0: it is being saved or restored");
    cr_expect_eq(erase(&r, 7, &n), 0, "another one: %s", err);
    atomic_store(&halt.go, true);
    pthread_join(other.thread, NULL);
    cr_expect_eq(other.rc, 0, "%s", other.err);
    talk(&r, b, 100, 5, 0, 0, &h);
    cr_expect_eq(h.slot, 0, "it is to be had again");
    heard_clear(&h);
    rig_close(&r);
    free(a);
    free(b);
}

Test(slotio, a_history_that_loses_its_end_meanwhile_is_not_saved)
{
    struct rig r = open_rig(&rig_options, 512); /* 8 blocks */
    int32_t *a = prompt_of(17, 250), *b = prompt_of(18, 250);
    struct heard h;
    talk(&r, a, 250, 5, 0, 0, &h);
    heard_clear(&h);
    struct other other = { .r = &r, .c = call_of(0, "a") };
    other.c.stop = halted;
    atomic_store(&halt.asked, 1);
    pthread_create(&other.thread, NULL, other_main, &other);
    while (atomic_load(&halt.asked) < 2)
        sched_yield();
    talk(&r, b, 250, 100, -1, 0, &h); /* six blocks */
    cr_expect_eq(h.stop, SCHED_STOP_LENGTH, "%s", h.error);
    heard_clear(&h);
    cr_expect_lt(slot_of(&r, 0).tokens, 254);
    atomic_store(&halt.go, true);
    pthread_join(other.thread, NULL);
    cr_expect_eq(other.rc, -EBUSY);
    cr_expect_str_eq(other.err, "slot 0: its memory was needed while it was being saved");
    cr_expect_eq(faccessat(other.c.dir, "a", F_OK, 0), -1);
    rig_close(&r);
    free(a);
    free(b);
}

Test(slotio, main_too_is_nobodys_while_it_is_saved)
{
    struct rig r = open_rig(&rig_options, 2048);
    int32_t *a = prompt_of(17, 150), *b = prompt_of(18, 100);
    struct heard h;
    talk(&r, a, 150, 5, -1, 0, &h);
    cr_expect_eq(h.slot, SCHED_MAIN);
    heard_clear(&h);
    struct other other = { .r = &r, .c = call_of(SCHED_MAIN, "a") };
    other.c.stop = halted;
    atomic_store(&halt.asked, 1);
    pthread_create(&other.thread, NULL, other_main, &other);
    while (atomic_load(&halt.asked) < 2)
        sched_yield();
    talk(&r, b, 100, 60, -1, 0, &h); /* alone, and with more to go than the way to main is worth */
    cr_expect_geq(h.slot, 0, "slot %d", h.slot);
    cr_expect_geq(h.last_slot, 0, "slot %d", h.last_slot);
    heard_clear(&h);
    atomic_store(&halt.go, true);
    pthread_join(other.thread, NULL);
    cr_expect_eq(other.rc, 0, "%s", other.err);
    cr_expect_eq(other.done.tokens, 154);
    talk(&r, b, 100, 5, -1, 0, &h);
    cr_expect_eq(h.slot, SCHED_MAIN, "it is to be had again");
    heard_clear(&h);
    rig_close(&r);
    free(a);
    free(b);
}

/* A file may be right in all its checksums and hold what no model ever computed. */
Test(slotio, keys_and_values_that_are_no_numbers_harm_nobody_else)
{
    struct rig r = open_rig(&rig_options, 2048);
    int32_t *prompt = prompt_of(19, 150);
    const struct slotfile_history history = { .n_tokens = 150, .turn_tokens = 150, .turns = 1 };
    unsigned char *kv = malloc(64 * kind.token_bytes);
    struct heard cold, h;
    struct slotfile *f;
    uint64_t bytes;
    uint32_t n;
    talk(&r, prompt, 150, 20, 1, 0, &cold);
    cr_assert_eq(erase(&r, 1, &n), 0);
    for (int fill = 0; fill < 2; fill++) {
        struct sched_slot_call c = call_of(0, "a");
        memset(kv, fill ? 0xFF : 0x7B, 64 * kind.token_bytes); /* NaN; numbers so large that sums overflow */
        cr_assert_eq(slotfile_create(c.dir, c.name, &kind, &history, prompt, &f, err, sizeof err), 0);
        for (uint32_t at = 0; at < 150; at += 64)
            cr_assert_eq(slotfile_write(f, kv, 150 - at < 64 ? 150 - at : 64, err, sizeof err), 0);
        cr_assert_eq(slotfile_finish(f, &bytes, err, sizeof err), 0, "%s", err);
        slotfile_close(f);
        cr_assert_eq(restore(&r, 0, "a"), 0, "%s", err);
        for (int sampled = 0; sampled < 2; sampled++) {
            heard_init(&h);
            struct sched_job job = job_of(prompt, 150, 20, &h);
            job.sampling.temperature = (float)sampled;
            job.sampling.n_top_logprobs = 3;
            run_job(&r, &job);
            cr_expect_eq(h.timings.cached, 149);
            cr_expect(h.stop == SCHED_STOP_LENGTH || (h.stop == SCHED_STOP_FAILED && *h.error));
            heard_clear(&h);
        }
        cr_assert_eq(erase(&r, 0, &n), 0);
        cr_assert_eq(erase(&r, SCHED_MAIN, &n), 0);
    }
    talk(&r, prompt, 150, 20, 2, 0, &h);
    cr_expect_eq(h.timings.cached, 0);
    expect_same(&h, &cold, "after all that and before");
    heard_clear(&h);
    heard_clear(&cold);
    rig_close(&r);
    free(kv);
    free(prompt);
}

/* holds: what it is to replace lies there and is in the way too. */
static void give_way(bool holds)
{
    struct rig r = open_rig(&rig_options, 512); /* 8 blocks */
    int32_t *a = prompt_of(15, 250), *b = prompt_of(16, 250), *c = prompt_of(17, 100);
    struct heard h;
    uint32_t n;
    atomic_store(&halt.asked, 0);
    atomic_store(&halt.go, false);
    talk(&r, a, 250, 5, 0, 0, &h); /* 4 blocks */
    heard_clear(&h);
    cr_assert_eq(save(&r, 0, "a"), 0, "%s", err);
    cr_assert_eq(erase(&r, 0, &n), 0);
    if (holds) {
        talk(&r, c, 100, 5, 0, 0, &h);
        heard_clear(&h);
    }
    struct other other = { .r = &r, .c = call_of(0, "a"), .restores = true };
    other.c.stop = halted;
    pthread_create(&other.thread, NULL, other_main, &other);
    while (atomic_load(&halt.asked) < 2)
        sched_yield();
    talk(&r, b, 250, 200, -1, 0, &h); /* 8 blocks */
    cr_expect_eq(h.stop, SCHED_STOP_LENGTH, "%s", h.error);
    heard_clear(&h);
    atomic_store(&halt.go, true);
    pthread_join(other.thread, NULL);
    cr_expect_eq(other.rc, -ENOMEM);
    cr_expect_eq(slot_of(&r, 0).tokens, 0);
    cr_expect_eq(restore(&r, 0, "a"), 0, "the last request's memory is free to go now: %s", err);
    rig_close(&r);
    free(a);
    free(b);
    free(c);
}

Test(slotio, what_comes_in_gives_way_to_requests)
{
    give_way(false);
    give_way(true);
}

/* False when it ended instead. */
static bool await_call(struct other *o)
{
    struct visits *v = &o->r->s->visits;
    for (;;) {
        bool ended = atomic_load(&o->ended);
        pthread_mutex_lock(&v->lock);
        bool waits = v->first;
        pthread_mutex_unlock(&v->lock);
        if (waits || ended)
            return waits;
        sched_yield();
    }
}

/* A file as large as a few buffers would need a large model; a small one shows the same: while a request runs
 * a call is answered between two windows, so that many windows pass for a save and none waits for it. */
Test(slotio, streams_go_on_while_conversations_come_and_go)
{
    struct sched_options o = rig_options;
    o.slots = 4;
    struct rig r = open_rig(&o, 4096);
    int32_t *prompt = prompt_of(12, 400), *other = prompt_of(13, 50);
    struct heard h, stream, cold;
    talk(&r, prompt, 400, 5, 0, 0, &h);
    heard_clear(&h);
    talk(&r, other, 50, 300, 3, 0, &cold);
    heard_init(&stream);
    struct sched_job job = job_of(other, 50, 300, &stream);
    job.cache_prompt = false;
    job.id_slot = 2;
    rig_until_text(&r, &job);
    struct other saver = { .r = &r, .c = call_of(0, "a") };
    pthread_create(&saver.thread, NULL, other_main, &saver);
    unsigned windows = 0;
    for (; await_call(&saver); windows++)
        rig_pass(1);
    rig_open_gate();
    pthread_join(saver.thread, NULL);
    cr_expect_eq(saver.rc, 0, "%s", saver.err);
    cr_expect_geq(windows, 3, "each call is answered at a window's border");
    cr_expect_lt(windows, 20, "%u windows for a small conversation", windows);
    cr_expect_eq(restore(&r, 1, "a"), 0, "%s", err);
    heard_wait(&stream, HEARD_DONE);
    expect_same(&stream, &cold, "beside a save and alone");
    heard_clear(&stream);
    heard_clear(&cold);
    rig_close(&r);
    free(prompt);
    free(other);
}

static atomic_bool enough;

static void *wake_on(void *arg)
{
    while (!atomic_load(&enough))
        sched_wake(arg);
    return NULL;
}

/* A wake that comes while another one is taken is not lost: this would wait for ever. */
Test(slotio, wakes_are_never_lost)
{
    struct rig r = open_rig(&rig_options, 1024);
    pthread_t waker;
    cr_assert_eq(pthread_create(&waker, NULL, wake_on, r.s), 0);
    uint32_t n;
    for (int i = 0; i < 30000; i++)
        cr_assert_eq(erase(&r, 0, &n), 0);
    atomic_store(&enough, true);
    pthread_join(waker, NULL);
    cr_assert_eq(erase(&r, 0, &n), 0);
    rig_close(&r);
}
