/* Cmd serve admin: the endpoints that belong to the process: POST /admin/reload, which answers with the
 * outcome of the reload it asked for, and GET /admin/policy. Thread: the event thread's. Must not know: how a
 * reload is done. Tests: tests/e2e/test_reload.py */
#pragma once
#include "cmd_serve_reload.h"
#include <jansson.h>

struct admin;

/* r is borrowed. */
int admin_new(struct reload *r, struct admin **ret_admin);
#define ADMIN_ROUTES 2
void admin_routes(struct admin *a, struct http_route ret_routes[ADMIN_ROUTES]);
/* A reload's outcome, for those who wait for a ticket up to this one. */
void admin_answer(struct admin *a, uint64_t ticket, const struct reload_outcome *o);
/* Answers all that still wait: the server ends. */
void admin_abort(struct admin *a);
void admin_free(struct admin *a); /* after http_free; NULL is fine */

/* [any thread] The policy in use, its settings, shadows, the trace, and the counts of reloads; NULL: out of
 * memory. A new reference. */
json_t *admin_policy_json(struct reload *r);
