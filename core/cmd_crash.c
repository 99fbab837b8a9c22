/* Cmd crash: see cmd_crash.h. Everything here is async-signal-safe: text is put together by hand and written
 * with one write(2). */
#include "cmd_crash.h"
#include "policy/marker.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

struct line {
    char text[160];
    size_t len;
};

static void put(struct line *l, const char *text)
{
    for (; *text && l->len < sizeof l->text - 1; text++)
        l->text[l->len++] = *text;
}

static void put_number(struct line *l, unsigned n)
{
    char digits[12];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do
        digits[--at] = (char)('0' + n % 10);
    while (n /= 10);
    put(l, digits + at);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    struct line l = { .len = 0 };
    struct policy_inside inside;
    (void)context;
    put(&l, "berth: signal ");
    put_number(&l, (unsigned)number);
    if (policy_marker_here(&inside)) {
        put(&l, " inside policy ");
        put(&l, inside.policy);
        put(&l, ", function ");
        put(&l, inside.function);
    }
    l.text[l.len++] = '\n';
    if (write(STDERR_FILENO, l.text, l.len) < 0) {
        /* nobody is there to be told */
    }
    /* The handler is gone by now (SA_RESETHAND). A fault happens again on return; a signal that was sent does
     * not. */
    if (info->si_code <= 0)
        raise(number);
}

void crash_install(void)
{
    static const int signals[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };
    struct sigaction action = { .sa_sigaction = on_fault,
                                .sa_flags = SA_SIGINFO | SA_ONSTACK | (int)SA_RESETHAND },
                     before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        /* A sanitizer's own handler tells more. */
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(signals[i], &action, NULL);
}
