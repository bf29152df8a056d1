// Work on the threads of torch's OpenMP team: a second pool would compete for the cores. Each thread takes the next free
// piece, so that a preempted thread does not delay the others.

#include <stdint.h>

typedef void (*start_team)(void (*run)(void *), void *data, unsigned threads, unsigned flags);

static start_team start;  // GOMP_parallel of libgomp or libomp

struct work {
    void (*run)(const void *arguments, int64_t first, int64_t last);
    const void *arguments;
    int64_t count, grain, next;
};

static void take_work(void *shared) {
    struct work *work = shared;
    for (;;) {
        int64_t first = __atomic_fetch_add(&work->next, work->grain, __ATOMIC_RELAXED);
        if (first >= work->count) return;
        int64_t last = first + work->grain;
        work->run(work->arguments, first, last < work->count ? last : work->count);
    }
}

// Calls run(arguments, first, last) until all of 0..count are done, `grain` or fewer at a time.
static void spread(void (*run)(const void *, int64_t, int64_t), const void *arguments, int64_t count, int64_t grain,
                   int threads) {
    if (grain < 1) grain = 1;
    if (threads < 2 || count <= grain) {
        run(arguments, 0, count);
        return;
    }
    struct work work = {run, arguments, count, grain, 0};
    start(take_work, &work, threads, 0);
}
