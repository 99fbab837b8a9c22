/* Tests of core/policy/trace.c: a line for every decision, in a form that can be asked again. */
#include "policy_case.h"

#include "policy/case.h"
#include "policy/trace.h"
#include "util/jsonx.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/berth-trace-XXXXXX", path[64], other[64];

static int failures, failure; /* what was told of lines that could not be written */

struct rig {
    struct policy_listeners *l;
    struct policy_trace *t;
    struct case_table *table;
};

static void on_failure(void *arg, int error)
{
    (void)arg;
    failures++;
    failure = error;
}

static struct rig rig_open(void)
{
    struct rig r = { .table = case_new(4, 2, true) };
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/trace.jsonl", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    cr_assert_eq(policy_listeners_new(&r.l), 0);
    cr_assert_eq(policy_trace_new(r.l, on_failure, NULL, &r.t), 0);
    case_ready(r.table);
    return r;
}

static void rig_close(struct rig *r)
{
    policy_trace_free(r->t);
    policy_listeners_free(r->l);
    free(r->table);
    unlink(path);
    unlink(other);
    rmdir(folder);
}

static void use(struct rig *r, const char *to)
{
    char err[256] = "";
    int fd = -1;
    cr_assert_eq(policy_trace_open(to, &fd, err, sizeof err), 0, "%s", err);
    cr_assert_eq(policy_trace_use(r->t, fd), 0);
}

static void offer(struct rig *r, bool for_display)
{
    const double losses[4] = { 0.1, NAN, 2, 3 };
    struct policy_decision d = {
        .call = POLICY_CALL_PLACE,
        .time_ns = 1700000000123456789,
        .job = 12,
        .took_ns = 1042,
        .for_display = for_display,
        .policy = "value",
        .generation = 6,
        .snapshot = &r->table->v,
        .request = &r->table->request,
        .answer = { .slot = 2, .reason = "new_blank", .loss = 0.1, .candidate_loss = losses },
    };
    cr_assert_eq(policy_listeners_offer(r->l, &d), 0);
}

/* Every line of a file is a case and says what was decided; returns how many there are. */
static unsigned count_lines(const char *file)
{
    struct policy_case *c;
    char *line = NULL, err[256];
    size_t cap = 0;
    unsigned n = 0;
    ssize_t len;
    FILE *f = fopen(file, "r");
    cr_assert_not_null(f);
    cr_assert_eq(policy_case_new(&c), 0);
    while ((len = getline(&line, &cap, f)) > 0) {
        json_t *o = NULL;
        cr_assert_eq(jsonx_parse(line, (size_t)len, POLICY_CASE_DEPTH, true, &o, err, sizeof err), 0, "%s",
                     err);
        cr_assert_eq(policy_case_read(c, o, err, sizeof err), 0, "%s", err);
        cr_assert_eq(policy_case_get(c)->snapshot->n_slots, 4);
        json_t *d = json_object_get(o, "decision"),
               *want = json_loads("{\"time_s\":1700000000.1234567,\"job\":12,\"policy\":\"value\","
                                  "\"generation\":6,\"by_builtin\":false,"
                                  "\"took_us\":1.042,\"slot\":2,\"source\":null,\"reason\":\"new_blank\","
                                  "\"loss\":0.1,\"tokens_lost\":0,"
                                  "\"candidate_loss\":[0.1,null,2,3]}",
                                  0, NULL);
        cr_assert_float_eq(json_real_value(json_object_get(d, "time_s")), 1700000000.123456789, 1e-6);
        json_object_set(want, "time_s", json_object_get(d, "time_s"));
        json_array_set_new(json_object_get(want, "candidate_loss"), 2, json_integer(2));
        cr_assert(json_equal(d, want), "%s", line);
        json_decref(want);
        json_decref(o);
        n++;
    }
    cr_assert(feof(f));
    fclose(f);
    free(line);
    policy_case_free(c);
    return n;
}

Test(trace, decisions_are_lines_but_those_that_are_only_shown)
{
    struct rig r = rig_open();
    struct stat st;
    cr_expect_not(policy_listeners_any(r.l), "off at first");
    use(&r, path);
    for (int i = 0; i < 20; i++)
        offer(&r, i % 2);
    cr_expect(policy_trace_status(r.t).on);
    cr_assert_eq(policy_trace_use(r.t, -1), 0);
    cr_expect_not(policy_listeners_any(r.l));
    offer(&r, false);
    cr_expect_eq(count_lines(path), 10);
    struct policy_trace_status s = policy_trace_status(r.t);
    cr_expect(!s.on && s.lines == 10 && s.dropped == 0 && s.failed == 0);
    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0600);
    rig_close(&r);
}

Test(trace, a_file_that_was_moved_away_is_let_go_when_it_is_opened_again)
{
    struct rig r = rig_open();
    use(&r, path);
    offer(&r, false);
    cr_assert_eq(rename(path, other), 0);
    offer(&r, false);
    use(&r, path);
    offer(&r, false);
    cr_assert_eq(policy_trace_use(r.t, -1), 0);
    cr_expect_eq(count_lines(other), 2, "what came before is there");
    cr_expect_eq(count_lines(path), 1);
    use(&r, path);
    offer(&r, false);
    cr_assert_eq(policy_trace_use(r.t, -1), 0);
    cr_expect_eq(count_lines(path), 2, "appended to");
    cr_expect_eq(policy_trace_status(r.t).lines, 4);
    rig_close(&r);
}

Test(trace, a_full_disk_is_counted_and_told_once)
{
    struct rig r = rig_open();
    use(&r, "/dev/full");
    for (int i = 0; i < 5; i++)
        offer(&r, false);
    cr_assert_eq(policy_trace_use(r.t, -1), 0);
    struct policy_trace_status s = policy_trace_status(r.t);
    cr_expect_eq(s.failed, 5);
    cr_expect_eq(s.lines, 0);
    cr_expect_eq(failures, 1);
    cr_expect_eq(failure, ENOSPC);
    use(&r, "/dev/full");
    offer(&r, false);
    cr_assert_eq(policy_trace_use(r.t, -1), 0);
    cr_expect_eq(failures, 2, "a file that is opened anew is told of anew");
    rig_close(&r);
}

Test(trace, what_cannot_be_opened_is_refused_and_named)
{
    struct rig r = rig_open();
    char err[256], want[256];
    int fd = -7;
    cr_expect_eq(policy_trace_open("/no/such/folder/t", &fd, err, sizeof err), -ENOENT);
    cr_expect_str_eq(err, "/no/such/folder/t: No such file or directory");
    cr_assert_eq(mkfifo(other, 0600), 0);
    cr_expect_eq(policy_trace_open(other, &fd, err, sizeof err), -ENXIO);
    snprintf(want, sizeof want, "%s: a pipe that nobody reads", other);
    cr_expect_str_eq(err, want);
    cr_expect_eq(fd, -7);
    cr_expect_eq(policy_trace_open(NULL, &fd, err, sizeof err), 0);
    cr_expect_eq(fd, STDERR_FILENO);
    rig_close(&r);
}

Test(trace, a_reader_that_stops_reading_costs_drops_and_a_second_at_the_end)
{
    struct rig r = rig_open();
    cr_assert_eq(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    use(&r, path);
    for (int i = 0; i < 1000; i++)
        offer(&r, false);
    cr_expect_gt(policy_trace_status(r.t).dropped, 0);
    cr_assert_eq(policy_trace_use(r.t, -1), 0);
    rig_close(&r);
    signal(SIGPIPE, SIG_IGN);
    close(reader);
}
