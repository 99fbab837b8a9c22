/* Probe: see probe.h. */
#include "policy/probe.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_MS 5000u

extern char **environ;

/* ---- what it is told ---- */

struct strings {
    char **at; /* ends with NULL; the strings of it that are `owned` are freed */
    size_t n, owned_from, owned_to;
};

static void clear(struct strings *s)
{
    for (size_t i = s->owned_from; s->at && i < s->owned_to; i++)
        free(s->at[i]);
    free(s->at);
}

static char *pair(const char *before, const struct policy_given *g)
{
    char *text;
    return asprintf(&text, "%s%s=%s", before, g->name, g->text) < 0 ? NULL : text;
}

static int make_arguments(const struct policy_load_options *o, struct strings *ret)
{
    static const char *const fixed[] = { "berth", "policy", "check", "--probe", POLICY_PROBE_PATH };
    enum { FIXED = sizeof fixed / sizeof *fixed };
    ret->at = calloc(FIXED + o->n_settings + 1, sizeof *ret->at);
    if (!ret->at)
        return -ENOMEM;
    for (; ret->n < FIXED; ret->n++)
        ret->at[ret->n] = (char *)(uintptr_t)fixed[ret->n]; /* execve takes them as char *, and reads only */
    ret->owned_from = ret->owned_to = ret->n;
    for (size_t i = 0; i < o->n_settings; i++) {
        ret->at[ret->n] = pair("--set=", &o->settings[i]);
        if (!ret->at[ret->n])
            return -ENOMEM;
        ret->owned_to = ++ret->n;
    }
    return 0;
}

/* The environment that was given, before that of this process: the first of a name counts. */
static int make_environment(const struct policy_load_options *o, struct strings *ret)
{
    size_t n = 0;
    while (environ && environ[n])
        n++;
    ret->at = calloc(o->n_env + n + 1, sizeof *ret->at);
    if (!ret->at)
        return -ENOMEM;
    for (size_t i = 0; i < o->n_env; i++) {
        ret->at[ret->n] = pair("", &o->env[i]);
        if (!ret->at[ret->n])
            return -ENOMEM;
        ret->owned_to = ++ret->n;
    }
    for (size_t i = 0; i < n; i++)
        ret->at[ret->n++] = environ[i];
    return 0;
}

/* ---- starting it ---- */

struct child {
    pid_t pid;
    int output, pidfd, timer;
    char text[1024]; /* the last of what it said */
    size_t len;
};

static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int r = posix_spawnattr_setsigmask(attributes, &none);
    if (r == 0)
        r = posix_spawnattr_setsigdefault(attributes, &all);
    if (r == 0)
        r = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return r;
}

/* It gets the null device, the pipe and the bytes, and no other descriptor of ours. */
static int set_files(posix_spawn_file_actions_t *files, int pipe_fd, int fd)
{
    int r = posix_spawn_file_actions_adddup2(files, pipe_fd, STDOUT_FILENO);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(files, pipe_fd, STDERR_FILENO);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(files, fd, POLICY_PROBE_FD);
    if (r == 0)
        r = posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (r == 0)
        r = posix_spawn_file_actions_addclosefrom_np(files, POLICY_PROBE_FD + 1);
    return r;
}

static int spawn(const struct policy_load_options *o, int pipe_fd, int fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    struct strings arguments = { 0 }, environment = { 0 };
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    int r = make_arguments(o, &arguments);
    if (r == 0)
        r = make_environment(o, &environment);
    if (r == 0)
        r = -set_attributes(&attributes);
    if (r == 0)
        r = -set_files(&files, pipe_fd, fd);
    if (r == 0)
        r = -posix_spawn(ret_pid, o->probe_program, &files, &attributes, arguments.at, environment.at);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    clear(&arguments);
    clear(&environment);
    return r;
}

static void end(struct child *c)
{
    if (c->pid > 0) {
        kill(c->pid, SIGKILL);
        waitpid(c->pid, NULL, 0);
    }
    int const open[] = { c->output, c->pidfd, c->timer };
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (open[i] >= 0)
            close(open[i]);
}

static int start(const struct policy_load_options *o, int fd, struct child *c)
{
    unsigned ms = o->probe_ms ? o->probe_ms : DEFAULT_MS;
    struct itimerspec limit = { .it_value = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L } };
    int ends[2];
    *c = (struct child){ .pid = -1, .output = -1, .pidfd = -1, .timer = -1 };
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    c->output = ends[0];
    int r = spawn(o, ends[1], fd, &c->pid);
    close(ends[1]);
    if (r < 0) {
        c->pid = -1;
        return r;
    }
    c->pidfd = pidfd_open(c->pid, 0);
    c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (c->pidfd < 0 || c->timer < 0 || timerfd_settime(c->timer, 0, &limit, NULL) < 0 ||
        fcntl(c->output, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    return 0;
}

/* ---- hearing it out ---- */

/* Takes what there is; keeps the end of it. False when nothing more will come. */
static bool take_output(struct child *c)
{
    char part[512];
    for (;;) {
        ssize_t n = read(c->output, part, sizeof part);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (n < 0)
            return true;
        size_t len = (size_t)n, room = sizeof c->text - 1;
        if (c->len + len > room) {
            size_t drop = c->len + len - room;
            memmove(c->text, c->text + drop, c->len - drop);
            c->len -= drop;
        }
        memcpy(c->text + c->len, part, len);
        c->len += len;
    }
}

/* Until it ended: 0. -ETIMEDOUT, or -ECANCELED when nobody wants to know any more. */
static int hear_out(struct child *c, int stop_fd)
{
    struct pollfd fds[] = { { .fd = c->pidfd, .events = POLLIN },
                            { .fd = c->timer, .events = POLLIN },
                            { .fd = c->output, .events = POLLIN },
                            { .fd = stop_fd > 0 ? stop_fd : -1, .events = POLLIN } };
    for (;;) {
        if (poll(fds, sizeof fds / sizeof *fds, -1) < 0)
            continue; /* a signal */
        if (fds[2].fd >= 0 && !take_output(c))
            fds[2].fd = -1; /* poll passes it over */
        if (fds[0].revents)
            return 0;
        if (fds[1].revents || fds[3].revents)
            return fds[3].revents ? -ECANCELED : -ETIMEDOUT;
    }
}

/* Its last line, without what would break ours. */
static const char *last_line(struct child *c)
{
    while (c->len && (unsigned char)c->text[c->len - 1] <= ' ')
        c->len--;
    c->text[c->len] = '\0';
    char *line = memrchr(c->text, '\n', c->len);
    line = line ? line + 1 : c->text;
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = ' ';
    return line;
}

static int judge(struct child *c, int status, char *err, size_t errlen)
{
    const char *line = last_line(c), *inside = strstr(line, "inside policy ");
    if (inside) /* of the line its crash handler wrote */
        line = inside;
    if (WIFSIGNALED(status)) {
        snprintf(err, errlen, "probe: killed by signal %d (%s)%s%s", WTERMSIG(status),
                 strsignal(WTERMSIG(status)), *line ? ": " : "", line);
        return -ENOEXEC;
    }
    switch (WEXITSTATUS(status)) {
    case 0:
        if (strcmp(line, POLICY_PROBE_PASSED) == 0)
            return 0;
        snprintf(err, errlen, "probe: it ended the process%s%s", *line ? ": " : "", line);
        return -ENOEXEC;
    case POLICY_PROBE_SETTINGS:
        return -EDOM;
    case POLICY_PROBE_REFUSED:
        snprintf(err, errlen, "%s", *line ? line : "probe: refused without a reason");
        return -ENOEXEC;
    default:
        snprintf(err, errlen, "probe: ended with code %d%s%s", WEXITSTATUS(status), *line ? ": " : "", line);
        return -ENOEXEC;
    }
}

int policy_probe(const struct policy_load_options *o, int fd, char *err, size_t errlen)
{
    struct child c;
    int status, r = start(o, fd, &c);
    if (r < 0) {
        snprintf(err, errlen, "probe: cannot start %s: %s", o->probe_program, strerror(-r));
        goto out;
    }
    r = hear_out(&c, o->stop_fd);
    if (r < 0) {
        if (r == -ECANCELED)
            snprintf(err, errlen, "probe: given up");
        else
            snprintf(err, errlen, "probe: not finished after %u ms, killed",
                     o->probe_ms ? o->probe_ms : DEFAULT_MS);
        r = r == -ECANCELED ? r : -ENOEXEC;
    } else if (waitpid(c.pid, &status, 0) != c.pid) {
        snprintf(err, errlen, "probe: %s", strerror(errno));
        r = -ENOEXEC;
    } else {
        c.pid = -1;
        take_output(&c);
        r = judge(&c, status, err, errlen);
    }
out:
    end(&c);
    return r;
}
