/* Post: what other threads want done on the event thread; post.c says how. */
#pragma once
#include <pthread.h>
#include <stddef.h>

struct http_post_item {
    void (*fn)(void *arg);
    void *arg;
};

struct http_posts {       /* what other threads want done on the event thread */
    pthread_mutex_t lock; /* a leaf: nothing is called while it is held */
    struct http_post_item *in;
    size_t n_in, cap_in;
    struct http_post_item *run; /* event thread alone */
    size_t n_run, cap_run, at;
    int fd;
};
