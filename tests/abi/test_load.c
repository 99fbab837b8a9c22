/* Tests of core/policy/load.c and what it is made of: right policies load, wrong ones are refused with a line
 * that says why, and this process lives. BERTH_BUILD: where the policies and the program were built. */
#include "policy/host.h"
#include "policy/load.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH 4096

static const char *built(const char *name)
{
    static char paths[4][PATH]; /* the last four names remain */
    static unsigned next;
    char *path = paths[next++ % 4];
    cr_assert_not_null(getenv("BERTH_BUILD"));
    snprintf(path, PATH, "%s/%s", getenv("BERTH_BUILD"), name);
    return path;
}

static const char *odd(const char *name)
{
    char file[128];
    snprintf(file, sizeof file, "tests/abi/odd_%s.so", name);
    return built(file);
}

/* With a probe of `ms`; 0: without. */
static int load(const char *path, const char *when, unsigned ms, struct policy_loaded **ret, char err[1024])
{
    struct policy_given given = { .name = "when", .text = when, .origin = "conf.json line 3" };
    struct policy_load_options o = { .path = path,
                                     .settings = &given,
                                     .n_settings = when ? 1 : 0,
                                     .probe_program = ms ? built("berth") : NULL,
                                     .probe_ms = ms };
    *err = '\0';
    return policy_load(&o, ret, err, 1024);
}

static struct policy_loaded *loaded(const char *path, const char *when, unsigned ms)
{
    char err[1024];
    struct policy_loaded *p = NULL;
    cr_assert_eq(load(path, when, ms, &p, err), 0, "%s", err);
    return p;
}

static void expect_refused(const char *path, const char *when, unsigned ms, const char *why)
{
    char err[1024];
    struct policy_loaded *p = NULL;
    int r = load(path, when, ms, &p, err);
    cr_expect_lt(r, 0, "%s was loaded", path);
    cr_expect_null(p);
    cr_expect(strstr(err, why), "%s: \"%s\" is not in \"%s\"", path, why, err);
    cr_expect_null(strchr(err, '\n'), "one line");
}

static size_t count_dir(const char *path)
{
    size_t n = 0;
    DIR *d = opendir(path);
    cr_assert_not_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Lines of this process's mappings that hold `text`. */
static size_t mappings(const char *text)
{
    char line[PATH + 256];
    size_t n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f))
        n += strstr(line, text) != NULL;
    fclose(f);
    return n;
}

/* ---- right ones ---- */

Test(load, a_right_policy_is_what_it_says)
{
    struct policy_loaded *p = loaded(odd("right"), NULL, 20000);
    cr_expect_str_eq(policy_loaded_name(p), "odd");
    cr_expect_str_eq(policy_loaded_summary(p), "Takes the first free slot.");
    cr_expect_eq(strlen(policy_loaded_digest(p)), 64);
    struct policy_loaded_setting s = policy_loaded_setting_get(p, 0);
    cr_expect_str_eq(s.name, "when");
    cr_expect_str_eq(s.text, "never");
    cr_expect_str_eq(s.origin, "default");
    cr_expect_geq(mappings("/memfd:berth-policy"), 1);
    policy_loaded_unref(p);
    cr_expect_eq(mappings("/memfd:berth-policy"), 0, "nothing is left of it");
}

Test(load, ours_load_too)
{
    static const char *const names[] = { "plugins/value.so", "plugins/lru.so" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct policy_loaded *p = loaded(built(names[i]), NULL, 20000);
        cr_expect(strstr(names[i], policy_loaded_name(p)));
        policy_loaded_unref(p);
    }
}

Test(load, an_older_one_lacks_functions_and_loads)
{
    struct policy_loaded *p = loaded(odd("older"), NULL, 0);
    cr_expect_not_null(policy_loaded_entry(p)->place);
    cr_expect_null(policy_loaded_entry(p)->park_destination);
    policy_loaded_unref(p);
}

static void copy_file(const char *from, const char *to, size_t len)
{
    char *bytes = malloc(1 << 20);
    FILE *in = fopen(from, "re");
    cr_assert(bytes && in);
    size_t n = fread(bytes, 1, 1 << 20, in);
    fclose(in);
    /* In place: the same inode, as cp does. */
    FILE *out = fopen(to, "we");
    cr_assert_not_null(out);
    n = len && len < n ? len : n;
    cr_assert_eq(fwrite(bytes, 1, n, out), n);
    fclose(out);
    free(bytes);
}

static void make_dir(char path[64])
{
    strcpy(path, "/tmp/test_load_XXXXXX");
    cr_assert_not_null(mkdtemp(path));
}

static uint32_t asked(struct policy_loaded *p, struct policy_host_status *ret_status);

Test(load, the_file_is_free_once_it_is_read)
{
    char dir[64], path[128];
    struct policy_host_status status;
    make_dir(dir);
    snprintf(path, sizeof path, "%s/p.so", dir);
    copy_file(odd("right"), path, 0);
    struct policy_loaded *first = loaded(path, NULL, 0);
    copy_file(built("plugins/lru.so"), path, 0); /* over the one that is in use */
    struct policy_loaded *second = loaded(path, NULL, 0);
    copy_file(built("plugins/value.so"), path, 100); /* a copy that has only begun */
    expect_refused(path, NULL, 0, "truncated");
    cr_assert_eq(unlink(path), 0);
    expect_refused(path, NULL, 0, "No such file");
    cr_expect_str_eq(policy_loaded_name(first), "odd");
    cr_expect_str_eq(policy_loaded_name(second), "lru");
    cr_expect_eq(asked(first, &status), 0);
    cr_expect_eq(asked(second, &status), 0);
    policy_loaded_unref(first);
    policy_loaded_unref(second);
    rmdir(dir);
}

Test(load, one_that_cannot_be_unloaded_does_not_come_back)
{
    struct policy_loaded *p = loaded(odd("sticky"), NULL, 0);
    policy_loaded_unref(p); /* its descriptor is free again, its name is not */
    for (int i = 0; i < 3; i++) {
        p = loaded(built("plugins/lru.so"), NULL, 0);
        cr_expect_str_eq(policy_loaded_name(p), "lru");
        policy_loaded_unref(p);
        p = loaded(odd("sticky"), NULL, 0);
        policy_loaded_unref(p);
    }
}

Test(load, loading_leaves_nothing_behind)
{
    struct policy_loaded *p = loaded(odd("right"), NULL, 0);
    size_t fds = count_dir("/proc/self/fd"), maps = mappings("/memfd:berth-policy");
    for (int i = 0; i < 60; i++) {
        char err[1024];
        policy_loaded_unref(p);
        cr_expect_lt(load(odd("create_fails"), NULL, 0, &p, err), 0);
        cr_expect_lt(load(odd("fickle"), "always", 0, &p, err), 0);
        cr_expect_lt(load(odd("wrong_magic"), NULL, 0, &p, err), 0);
        p = loaded(odd("right"), NULL, 0);
    }
    cr_expect_eq(count_dir("/proc/self/fd"), fds);
    cr_expect_eq(mappings("/memfd:berth-policy"), maps);
    policy_loaded_unref(p);
}

Test(load, nobody_can_change_what_was_checked)
{
    struct policy_loaded *p = loaded(odd("right"), NULL, 0);
    char path[64], name[256];
    int seals = 0;
    for (int fd = 3; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, name, sizeof name - 1);
        name[n < 0 ? 0 : n] = '\0';
        if (strstr(name, "memfd:berth-policy"))
            seals = fcntl(fd, F_GET_SEALS);
    }
    cr_expect_eq(seals, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    policy_loaded_unref(p);
}

Test(load, a_private_file_where_memory_may_not_be_executed)
{
    char dir[64], err[1024];
    make_dir(dir);
    struct policy_loaded *p = NULL;
    struct policy_load_options o = { .path = odd("right"),
                                     .probe_program = built("berth"),
                                     .probe_ms = 20000,
                                     .private_dir = dir,
                                     .no_memfd = true };
    cr_assert_eq(policy_load(&o, &p, err, sizeof err), 0, "%s", err);
    cr_expect_eq(mappings("memfd:berth-policy"), 0);
    cr_expect_geq(mappings(dir), 1);
    cr_expect_eq(count_dir(dir), 2, "it has no name there");
    policy_loaded_unref(p);
    cr_expect_eq(mappings(dir), 0);
    rmdir(dir);
    o.private_dir = "/nowhere";
    cr_expect_lt(policy_load(&o, &p, err, sizeof err), 0);
    cr_expect(strstr(err, "no file that code may run from") && strstr(err, "/nowhere"), "%s", err);
}

/* ---- refused before anything of them runs ---- */

Test(load, what_is_no_policy_of_this_server_is_not_opened)
{
    static const struct {
        const char *name, *why;
    } cases[] = {
        { "wrong_magic", "not a policy: slot_policy_entry begins with 00000000000004d2" },
        { "newer_major", "ABI 2.0, this server speaks 1.0" },
        { "needs_newer_minor", "it needs ABI 1.7, this server speaks 1.0" },
        { "short_size", "slot_policy_entry says it has 120 bytes, at least 176 are needed" },
        { "long_size", "slot_policy_entry says it has 272 bytes, the file has 208 of it" },
        { "huge_struct", "one of its structs has 5000 bytes, at most 4096 are allowed" },
        { "no_entry", "it exports no slot_policy_entry" },
        { "entry_is_code", "slot_policy_entry is not data" },
        { "small_entry", "slot_policy_entry has 8 bytes, a policy's has at least 112" },
        { "no_name", "it has no name of [a-z0-9_-]{1,31}" },
        { "no_reasons", "0 reasons, where 1..256 are allowed" },
        { "wrong_default",
          "setting when has a wrong default: \"perhaps\" is not one of never, always, asked" },
        { "undefined_symbol", "undefined symbol: nobody_has_this_function" },
        { "create_fails", "create: the moon is not full" },
        { "create_null", "create: failed without a reason" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_refused(odd(cases[i].name), NULL, 0, cases[i].why);
        expect_refused(odd(cases[i].name), NULL, 20000, cases[i].why);
    }
}

Test(load, what_is_no_file_of_this_machine_is_refused)
{
    char dir[64], path[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/p.so", dir);
    expect_refused(dir, NULL, 0, "not a regular file");
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_refused(path, NULL, 0, "not a regular file");
    unlink(path);
    FILE *f = fopen(path, "we");
    cr_assert_not_null(f);
    fclose(f);
    expect_refused(path, NULL, 0, "not an ELF file");
    copy_file(odd("right"), path, 63);
    expect_refused(path, NULL, 0, "truncated");
    copy_file(odd("right"), path, 5000);
    expect_refused(path, NULL, 0, "truncated");
    copy_file(odd("right"), path, 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint16_t machine = 0x1234;
    cr_assert_eq(pwrite(fd, &machine, sizeof machine, 18), 2);
    expect_refused(path, NULL, 0, "built for another machine: ELF machine 4660");
    close(fd);
    unlink(path);
    rmdir(dir);
    expect_refused(built("berth"), NULL, 0, "exports no slot_policy_entry");
}

/* ---- what only a child survives ---- */

#if defined(__SANITIZE_ADDRESS__)
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

Test(load, what_crashes_or_hangs_does_so_in_the_probe)
{
    expect_refused(odd("constructor_aborts"), NULL, 20000, "probe: killed by signal 6");
    /* A sanitizer makes an exit of it. */
    expect_refused(odd("create_crashes"), NULL, 20000, sanitized ? "" : "probe: killed by signal 11");
    expect_refused(odd("constructor_hangs"), NULL, 300, "probe: not finished after 300 ms, killed");
    expect_refused(odd("create_hangs"), NULL, 300, "probe: not finished after 300 ms, killed");
    expect_refused(odd("endless"), "always", 300, "probe: not finished after 300 ms, killed");
    expect_refused(odd("crashes"), "always", 20000, sanitized ? "" : "inside policy odd, function place");
    cr_expect_eq(mappings("/memfd:berth-policy"), 0);
}

Test(load, a_probe_that_cannot_be_started_refuses)
{
    char err[1024];
    struct policy_loaded *p = NULL;
    struct policy_load_options o = { .path = odd("right"), .probe_program = "/nowhere/berth" };
    cr_expect_lt(policy_load(&o, &p, err, sizeof err), 0);
    cr_expect(strstr(err, "probe: cannot start /nowhere/berth"), "%s", err);
    o.probe_program = "/bin/false"; /* ends with 1 and says nothing */
    cr_expect_lt(policy_load(&o, &p, err, sizeof err), 0);
    cr_expect(strstr(err, "probe: refused without a reason"), "%s", err);
    o.probe_program = "/bin/true";
    cr_expect_lt(policy_load(&o, &p, err, sizeof err), 0, "it did not say that the policy passed");
    cr_expect(strstr(err, "probe: it ended the process"), "%s", err);
}

Test(load, the_self_test_refuses_what_answers_wrong_or_differently)
{
    static const struct {
        const char *name, *why;
    } cases[] = {
        { "slot_range", "self-test: place: slot 6 of 1" },
        { "slot_busy", "is busy" },
        { "slot_excluded", "is excluded" },
        { "score_nan", "self-test: place: loss is not a number" },
        { "bits_beyond", "self-test: superseded_slots: slot 1 of 1" },
        { "fickle", "self-test: place: asked the same twice, it answers differently" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_refused(odd(cases[i].name), "always", 0, cases[i].why);
        expect_refused(odd(cases[i].name), "always", 20000, cases[i].why);
    }
}

/* ---- settings ---- */

Test(load, refused_settings_say_what_is_wrong_and_where_it_was_written)
{
    char err[1024];
    struct policy_loaded *p = NULL;
    const char *why = "when: \"sometimes\" is not one of never, always, asked (conf.json line 3)";
    expect_refused(odd("right"), "sometimes", 0, why);
    expect_refused(odd("right"), "sometimes", 20000, why);
    cr_expect_eq(load(odd("right"), "sometimes", 20000, &p, err), -EDOM);
    p = loaded(odd("right"), "asked", 20000);
    cr_expect_str_eq(policy_loaded_setting_get(p, 0).text, "asked");
    cr_expect_str_eq(policy_loaded_setting_get(p, 0).origin, "conf.json line 3");
    policy_loaded_unref(p);
}

Test(load, the_probe_sees_the_environment_that_was_given)
{
    char err[1024];
    struct policy_loaded *p = NULL;
    struct policy_given env[] = { { "ODD_WHEN", "always", "conf.json line 9" },
                                  { "ODD_WHEN", "never", "environment ODD_WHEN" } };
    struct policy_load_options o = {
        .path = odd("crashes"), .probe_program = built("berth"), .probe_ms = 20000, .env = env, .n_env = 2
    };
    setenv("ODD_WHEN", "never", 1);
    cr_expect_lt(policy_load(&o, &p, err, sizeof err), 0, "the first of a name counts, in the child too");
    cr_expect(sanitized || strstr(err, "probe: killed by signal 11"), "%s", err);
    env[0].text = "often";
    cr_expect_eq(policy_load(&o, &p, err, sizeof err), -EDOM);
    cr_expect(strstr(err, "when: \"often\"") && strstr(err, "conf.json line 9"), "%s", err);
    o.n_env = 0;
    cr_assert_eq(policy_load(&o, &p, err, sizeof err), 0, "%s", err);
    policy_loaded_unref(p);
}

/* ---- in use ---- */

/* One place in a table of four slots, the third busy and the fourth excluded, asked for; the slot. */
static uint32_t asked(struct policy_loaded *p, struct policy_host_status *ret_status)
{
    struct policy_history slots[4] = { { .id = 0 }, { .id = 1 }, { .id = 2 }, { .id = 3 } };
    struct policy_group group = { .slots = 4 };
    for (uint32_t i = 0; i < 4; i++)
        slots[i].flags = POLICY_RELIABLE;
    slots[2].flags |= POLICY_BUSY;
    slots[3].flags |= POLICY_EXCLUDED;
    slots[1].prompt_tokens = 77;
    struct policy_snapshot v = { .size = sizeof v,
                                 .flags = POLICY_PADDING_SAFE,
                                 .now_ns = 1000,
                                 .slots = slots,
                                 .n_slots = 4,
                                 .slot_stride = sizeof slots[0],
                                 .groups = &group,
                                 .n_groups = 1,
                                 .group_stride = sizeof group };
    struct policy_request r = { .size = sizeof r, .prompt_tokens = 100, .max_new_tokens = 77 };
    struct policy_host_place a;
    struct policy_host *h = NULL;
    struct policy_seat *seat = NULL;
    cr_assert_eq(policy_seat_new(p, &seat), 0);
    struct policy_host_options o = { .seat = seat };
    cr_assert_eq(policy_host_new(&o, 4, &h), 0);
    policy_host_pin(h);
    cr_expect_eq(policy_host_place(h, &v, &r, &a), POLICY_DECIDED);
    cr_expect_eq(policy_host_superseded(h, &v)[0], 0);
    cr_expect_eq(policy_host_state(h, &v)[0].value == policy_host_state(h, &v)[0].value, true);
    policy_host_unpin(h);
    policy_host_status(h, ret_status);
    policy_host_free(h);
    policy_seat_free(seat);
    return a.slot;
}

Test(load, a_breach_in_use_is_counted_and_answered_by_the_builtin)
{
    static const struct {
        const char *name;
        enum policy_call call;
        uint64_t breaches;
    } cases[] = {
        { "right", POLICY_CALL_PLACE, 0 },
        { "slot_range", POLICY_CALL_PLACE, 1 },
        { "slot_busy", POLICY_CALL_PLACE, 1 },
        { "slot_excluded", POLICY_CALL_PLACE, 1 },
        { "score_nan", POLICY_CALL_PLACE, 1 },
        { "score_nan", POLICY_CALL_STATE, 1 },
        { "bits_beyond", POLICY_CALL_SUPERSEDED, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct policy_host_status status;
        struct policy_loaded *p = loaded(odd(cases[i].name), "asked", 0);
        cr_expect_eq(asked(p, &status), 0, "%s: the built-in's choice", cases[i].name);
        cr_expect_geq(status.call[cases[i].call].breaches, cases[i].breaches, "%s", cases[i].name);
        cr_expect_eq(status.call[cases[i].call].by_builtin > 0, cases[i].breaches > 0, "%s", cases[i].name);
        policy_loaded_unref(p);
    }
}
