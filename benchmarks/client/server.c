/* A completions server of known schedule that writes down when it really sent each piece.
 *
 *     server THREADS        listens on a free port of 127.0.0.1 and prints it; ends with its stdin
 *
 * Compiled, because the truth must cost less than what is measured by it: a piece costs one system call, and it keeps
 * a schedule of microseconds while a client beside it is at its limit. Each thread has a listening socket of its own
 * (SO_REUSEPORT) and shares nothing with the others.
 *
 *     GET  /_set?ttft_us=200000&itl_us=20000   the schedule of requests that come from now on; itl 0: as fast as they are taken
 *     GET  /_set?in_step=1                     all streams' pieces fall due at the same moments, as where a batch is decoded
 *     GET  /_log                               what was served since the last time, as doubles (see `struct request`)
 *     POST /v1/completions, /v1/chat/completions
 *
 * A request's clock starts when the kernel received its last bytes (SO_TIMESTAMPNS), not when a thread came round to
 * reading them: 256 requests at once would otherwise wait for one another unseen. A piece's moment is taken before its
 * send(), in which the kernel already hands it to the receiver. All moments are CLOCK_MONOTONIC, in seconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_LIMIT = 1 << 22, THREADS_MOST = 64, EVENTS = 256 };

/* In /_log: arrival, when it was read, end, number of pieces, then a moment each. The end is when the client sent its
 * next request on this connection or closed it, 0 if neither has happened. */
struct request {
    double arrival, read, ended;
    long pieces, sent;
    double *moments;
    struct request *next;
};

struct connection {
    int fd;
    char *in;
    size_t have, room;
    double arrival;
    char *out; /* what the socket did not take */
    size_t out_at, out_size;
    bool chat, usage, stream, close, waits_for_room;
    double first, gap;
    long prompt_tokens;
    struct request *now; /* NULL: none under way */
    struct request *before;
    long place; /* in the heap; -1: not in it */
    double due;
};

struct thread {
    pthread_t id;
    int epoll, listener, timer;
    struct connection **heap;
    long heap_size, heap_room;
    struct request *log, **tail;
};

static struct thread threads[THREADS_MOST];
static int thread_count;
static double ttft = 0.2, itl = 0.02;
static bool in_step;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static double clock_of(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static double now(void) { return clock_of(CLOCK_MONOTONIC); }

static void die(const char *what)
{
    perror(what);
    exit(1);
}
static void *grown(void *old, size_t size)
{
    void *found = realloc(old, size);
    if (!found)
        die("realloc");
    return found;
}

/* A binary heap of connections by their next piece's moment. */
static void put(struct thread *t, long at, struct connection *c)
{
    t->heap[at] = c;
    c->place = at;
}
static void settle(struct thread *t, long at)
{
    struct connection *c = t->heap[at];
    while (at > 0 && t->heap[(at - 1) / 2]->due > c->due) {
        put(t, at, t->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        long child = 2 * at + 1;
        if (child + 1 < t->heap_size && t->heap[child + 1]->due < t->heap[child]->due)
            child++;
        if (child >= t->heap_size || t->heap[child]->due >= c->due)
            break;
        put(t, at, t->heap[child]);
        at = child;
    }
    put(t, at, c);
}
static void plan(struct thread *t, struct connection *c, double due)
{
    c->due = due;
    if (c->place < 0) {
        if (t->heap_size == t->heap_room) {
            t->heap_room = 2 * t->heap_room + 64;
            t->heap = grown(t->heap, sizeof(*t->heap) * (size_t)t->heap_room);
        }
        put(t, t->heap_size++, c);
    }
    settle(t, c->place);
}
static void unplan(struct thread *t, struct connection *c)
{
    if (c->place < 0)
        return;
    long at = c->place;
    struct connection *last = t->heap[--t->heap_size];
    c->place = -1;
    if (last != c) {
        put(t, at, last);
        settle(t, at);
    }
}

static void watch(struct thread *t, struct connection *c, bool room)
{
    struct epoll_event e = {.events = EPOLLIN | (room ? EPOLLOUT : 0), .data.ptr = c};
    if (room != c->waits_for_room && epoll_ctl(t->epoll, EPOLL_CTL_MOD, c->fd, &e) < 0)
        die("epoll_ctl");
    c->waits_for_room = room;
}

static void drop(struct thread *t, struct connection *c)
{
    struct request *r = c->now ? c->now : c->before;
    if (r && !r->ended)
        r->ended = now();
    unplan(t, c);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

/* Send, and keep what the socket does not take. False: the connection is gone. */
static bool give(struct thread *t, struct connection *c, const char *text, size_t size)
{
    ssize_t taken = 0;
    if (c->out_at == c->out_size) {
        taken = send(c->fd, text, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0 && errno != EAGAIN)
            return false;
        if (taken < 0)
            taken = 0;
        if ((size_t)taken == size)
            return true;
        c->out_at = c->out_size = 0;
    }
    c->out = grown(c->out, c->out_size + size);
    memcpy(c->out + c->out_size, text + taken, size - (size_t)taken);
    c->out_size += size - (size_t)taken;
    watch(t, c, true);
    return true;
}

static bool answer(struct thread *t, struct connection *c, const char *status, const char *type, const char *body, size_t size)
{
    char head[256];
    int length = snprintf(head, sizeof head,
                          "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\nconnection: %s\r\n\r\n", status, type, size,
                          c->close ? "close" : "keep-alive");
    return give(t, c, head, (size_t)length) && give(t, c, body, size);
}

static bool chunk(struct thread *t, struct connection *c, const char *event)
{
    char text[1024];
    size_t size = strlen(event);
    int head = snprintf(text, sizeof text, "%zx\r\n", size);
    memcpy(text + head, event, size);
    memcpy(text + head + size, "\r\n", 2);
    return give(t, c, text, (size_t)head + size + 2);
}

#define FRAME "\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"created\":1700000000,\"model\":\"mock\""

static int usage_of(const struct connection *c, char *text, size_t room)
{
    return snprintf(text, room, "\"usage\":{\"prompt_tokens\":%ld,\"total_tokens\":%ld,\"completion_tokens\":%ld,\"prompt_tokens_details\":null}",
                    c->prompt_tokens, c->prompt_tokens + c->now->pieces, c->now->pieces);
}

static void finish(struct connection *c)
{
    c->before = c->now;
    c->now = NULL;
}

/* The next piece of an answer, and with the last one what comes after it. */
static bool piece(struct thread *t, struct connection *c)
{
    struct request *r = c->now;
    char event[768], usage[256];
    const char *object = c->chat ? "chat.completion.chunk" : "text_completion";
    if (!c->stream) { /* whole, at the moment of its last token */
        char body[1024];
        usage_of(c, usage, sizeof usage);
        int size = c->chat ? snprintf(body, sizeof body, "{" FRAME ",\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\" word\"},\"finish_reason\":\"length\"}],%s}", usage)
                           : snprintf(body, sizeof body, "{" FRAME ",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,\"finish_reason\":\"length\"}],%s}", usage);
        r->sent = r->pieces;
        for (long i = 0; i < r->pieces; i++)
            r->moments[i] = now();
        finish(c);
        return answer(t, c, "200 OK", "application/json", body, (size_t)size);
    }
    bool last = r->sent == r->pieces - 1;
    const char *reason = last ? "\"length\"" : "null";
    /* Words of an equal length that differ, as a model's do. */
    if (c->chat)
        snprintf(event, sizeof event, "data: {" FRAME ",\"object\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{\"role\":null,\"content\":\" w%05ld\"},\"logprobs\":null,\"finish_reason\":%s}],\"usage\":null}\n\n", object, r->sent % 100000, reason);
    else
        snprintf(event, sizeof event, "data: {" FRAME ",\"object\":\"%s\",\"choices\":[{\"index\":0,\"text\":\" w%05ld\",\"logprobs\":null,\"finish_reason\":%s,\"matched_stop\":null}],\"usage\":null}\n\n", object, r->sent % 100000, reason);
    r->moments[r->sent++] = now();
    if (!chunk(t, c, event))
        return false;
    if (!last)
        return true;
    if (c->usage) {
        usage_of(c, usage, sizeof usage);
        snprintf(event, sizeof event, "data: {" FRAME ",\"object\":\"%s\",\"choices\":[],%s}\n\n", object, usage);
        if (!chunk(t, c, event))
            return false;
    }
    finish(c);
    return chunk(t, c, "data: [DONE]\n\n") && give(t, c, "0\r\n\r\n", 5);
}

static bool closes(const struct connection *c) { return c->close && !c->now && c->before && c->out_at == c->out_size; }

/* The value after "name": in a JSON text, looked for after `from`. Quotes inside strings are escaped, so no string of
 * the text can pass for it. */
static const char *value_of(const char *text, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\"", name);
    for (const char *at = text; (at = strstr(at, key)); at++) {
        const char *end = at + strlen(key);
        if (at > text && at[-1] == '\\')
            continue;
        end += strspn(end, " \t");
        if (*end == ':')
            return end + 1 + strspn(end + 1, " \t");
    }
    return NULL;
}
static bool is_true(const char *text, const char *name)
{
    const char *value = value_of(text, name);
    return value && !strncmp(value, "true", 4);
}

static bool begin(struct thread *t, struct connection *c, const char *body, size_t size, bool chat)
{
    const char *most = value_of(body, "max_tokens");
    if (!most || *most == 'n')
        most = value_of(body, "max_completion_tokens");
    long wanted = most ? atol(most) : 16;
    struct request *r = grown(NULL, sizeof *r);
    *r = (struct request){.arrival = c->arrival, .read = now(), .pieces = wanted < 1 ? 1 : wanted};
    r->moments = grown(NULL, sizeof(double) * (size_t)r->pieces);
    pthread_mutex_lock(&log_lock);
    *t->tail = r;
    t->tail = &r->next;
    pthread_mutex_unlock(&log_lock);
    c->now = r;
    c->chat = chat;
    c->usage = is_true(body, "include_usage");
    c->stream = is_true(body, "stream");
    c->prompt_tokens = (long)(size / 5) + 1;
    c->first = r->arrival + ttft;
    c->gap = itl;
    if (in_step && itl > 0)
        c->first = itl * (double)((long)(c->first / itl) + 1);
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
    if (c->stream && !give(t, c, head, sizeof head - 1))
        return false;
    plan(t, c, c->stream ? c->first : c->first + c->gap * (double)(r->pieces - 1));
    return true;
}

static bool write_log(struct thread *t, struct connection *c)
{
    double *numbers = NULL;
    size_t count = 0;
    pthread_mutex_lock(&log_lock);
    for (int i = 0; i < thread_count; i++)
        for (struct request *r = threads[i].log; r; r = r->next) {
            numbers = grown(numbers, sizeof(double) * (count + 4 + (size_t)r->sent));
            double head[4] = {r->arrival, r->read, r->ended, (double)r->sent};
            memcpy(numbers + count, head, sizeof head);
            memcpy(numbers + count + 4, r->moments, sizeof(double) * (size_t)r->sent);
            count += 4 + (size_t)r->sent;
        }
    /* Records stay allocated: a connection may still point at its last one. */
    for (int i = 0; i < thread_count; i++) {
        threads[i].log = NULL;
        threads[i].tail = &threads[i].log;
    }
    pthread_mutex_unlock(&log_lock);
    bool fine = answer(t, c, "200 OK", "application/octet-stream", (char *)numbers, sizeof(double) * count);
    free(numbers);
    return fine;
}

static bool get(struct thread *t, struct connection *c, const char *path)
{
    static const struct {
        const char *path, *body;
    } pages[] = {
        {"/health", ""},
        {"/health_generate", ""},
        {"/v1/models", "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"sglang\",\"root\":\"mock\",\"max_model_len\":131072}]}"},
        {"/model_info", "{\"model_path\":\"mock\",\"tokenizer_path\":\"mock\",\"is_generation\":true}"},
        {"/get_model_info", "{\"model_path\":\"mock\",\"tokenizer_path\":\"mock\",\"is_generation\":true}"},
        {"/server_info", "{\"internal_states\":[{}]}"},
        {"/get_server_info", "{\"internal_states\":[{}]}"},
    };
    if (!strncmp(path, "/_set?", 6)) {
        const char *at;
        if ((at = strstr(path, "ttft_us=")))
            ttft = 1e-6 * atof(at + 8);
        if ((at = strstr(path, "itl_us=")))
            itl = 1e-6 * atof(at + 7);
        if ((at = strstr(path, "in_step=")))
            in_step = atoi(at + 8);
        return answer(t, c, "200 OK", "text/plain", "", 0);
    }
    if (!strcmp(path, "/_log"))
        return write_log(t, c);
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (!strcmp(path, pages[i].path))
            return answer(t, c, "200 OK", "application/json", pages[i].body, strlen(pages[i].body));
    return answer(t, c, "404 Not Found", "application/json", "{}", 2);
}

/* One request out of what has arrived, if it is whole. */
static bool serve(struct thread *t, struct connection *c)
{
    while (!c->now && c->have) {
        c->in[c->have] = 0;
        char *end = strstr(c->in, "\r\n\r\n");
        if (!end)
            return c->have < HEAD_LIMIT;
        *end = 0;
        char *body = end + 4;
        size_t length = 0;
        c->close = false;
        for (char *line = c->in; (line = strstr(line, "\r\n")); line += 2) {
            if (!strncasecmp(line + 2, "content-length:", 15))
                length = (size_t)atol(line + 17);
            if (!strncasecmp(line + 2, "connection:", 11) && !strncasecmp(line + 13 + strspn(line + 13, " "), "close", 5))
                c->close = true;
        }
        size_t whole = (size_t)(body - c->in) + length;
        if (length > HEAD_LIMIT)
            return false;
        if (c->have < whole) {
            *end = '\r';
            return true;
        }
        if (c->before && !c->before->ended)
            c->before->ended = now();
        char after = body[length], method[8] = "", path[512] = "";
        body[length] = 0;
        sscanf(c->in, "%7s %511s", method, path);
        bool fine;
        if (!strcmp(method, "GET"))
            fine = get(t, c, path);
        else if (strstr(path, "completions"))
            fine = begin(t, c, body, length, strstr(path, "chat") != NULL);
        else
            fine = answer(t, c, "200 OK", "application/json", "{}", 2);
        body[length] = after;
        memmove(c->in, c->in + whole, c->have - whole);
        c->have -= whole;
        if (!fine || (c->close && !c->now && c->out_at == c->out_size))
            return false;
    }
    return true;
}

/* False: the connection has ended. */
static bool take(struct thread *t, struct connection *c)
{
    for (;;) {
        if (c->room - c->have < 8192) {
            c->room = 2 * c->room + 16384;
            c->in = grown(c->in, c->room + 1);
        }
        char control[CMSG_SPACE(sizeof(struct timespec))];
        struct iovec part = {c->in + c->have, c->room - c->have};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t size = recvmsg(c->fd, &message, MSG_DONTWAIT);
        if (size < 0)
            return errno == EAGAIN || errno == EINTR;
        if (size == 0)
            return false;
        c->arrival = now();
        for (struct cmsghdr *item = CMSG_FIRSTHDR(&message); item; item = CMSG_NXTHDR(&message, item))
            if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SO_TIMESTAMPNS) {
                struct timespec stamp;
                memcpy(&stamp, CMSG_DATA(item), sizeof stamp);
                double ago = clock_of(CLOCK_REALTIME) - ((double)stamp.tv_sec + 1e-9 * (double)stamp.tv_nsec);
                if (ago > 0 && ago < 1)
                    c->arrival -= ago;
            }
        c->have += (size_t)size;
        if (!serve(t, c))
            return false;
    }
}

static void greet(struct thread *t)
{
    int fd, yes = 1, buffer = 64 * 1024;
    while ((fd = accept4(t->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct connection *c = calloc(1, sizeof *c);
        if (!c)
            die("calloc");
        c->fd = fd;
        c->place = -1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &e) < 0)
            die("epoll_ctl");
        if (!take(t, c))
            drop(t, c);
    }
}

static bool flush_rest(struct thread *t, struct connection *c)
{
    ssize_t taken = send(c->fd, c->out + c->out_at, c->out_size - c->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0)
        return errno == EAGAIN;
    c->out_at += (size_t)taken;
    if (c->out_at == c->out_size)
        watch(t, c, false);
    return true;
}

/* Everything that is due: one piece a connection and turn, so that all of them get on alike. */
static void send_due(struct thread *t)
{
    for (int turns = 0; turns < EVENTS && t->heap_size && t->heap[0]->due <= now(); turns++) {
        struct connection *c = t->heap[0];
        unplan(t, c);
        if (c->waits_for_room)
            continue; /* goes on when there is room */
        if (!piece(t, c) || closes(c)) {
            drop(t, c);
            continue;
        }
        if (c->now)
            plan(t, c, c->gap > 0 ? c->first + c->gap * (double)c->now->sent : now());
        else if (!serve(t, c))
            drop(t, c);
    }
}

static void wait_until(struct thread *t)
{
    struct itimerspec alarm = {0};
    if (t->heap_size) {
        double due = t->heap[0]->due;
        alarm.it_value.tv_sec = (time_t)due;
        alarm.it_value.tv_nsec = (long)(1e9 * (due - (double)(time_t)due)) + 1;
        if (alarm.it_value.tv_nsec >= 1000000000) { /* just before a full second */
            alarm.it_value.tv_sec++;
            alarm.it_value.tv_nsec -= 1000000000;
        }
    }
    if (timerfd_settime(t->timer, TFD_TIMER_ABSTIME, &alarm, NULL) < 0)
        die("timerfd_settime");
}

static void *run(void *argument)
{
    struct thread *t = argument;
    struct epoll_event events[EVENTS];
    prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    for (;;) {
        bool busy = t->heap_size && t->heap[0]->due <= now();
        if (!busy)
            wait_until(t);
        int count = epoll_wait(t->epoll, events, EVENTS, busy ? 0 : -1);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].data.ptr == &t->listener) {
                greet(t);
                continue;
            }
            if (events[i].data.ptr == &t->timer) {
                uint64_t times;
                if (read(t->timer, &times, sizeof times) < 0 && errno != EAGAIN)
                    die("timer");
                continue;
            }
            bool fine = true;
            if (events[i].events & EPOLLOUT) {
                fine = flush_rest(t, c);
                if (fine && !c->waits_for_room && c->now)
                    plan(t, c, c->gap > 0 ? c->first + c->gap * (double)c->now->sent : now());
            }
            if (fine && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
                fine = take(t, c);
            if (!fine || closes(c))
                drop(t, c);
        }
        send_due(t);
    }
    return NULL;
}

int main(int count, char **words)
{
    thread_count = count > 1 ? atoi(words[1]) : 1;
    if (thread_count < 1 || thread_count > THREADS_MOST) {
        fprintf(stderr, "usage: server THREADS\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    for (int i = 0; i < thread_count; i++) {
        struct thread *t = &threads[i];
        int yes = 1;
        t->tail = &t->log;
        t->epoll = epoll_create1(EPOLL_CLOEXEC);
        t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        t->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (t->epoll < 0 || t->timer < 0 || t->listener < 0)
            die("socket");
        setsockopt(t->listener, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes);
        setsockopt(t->listener, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes); /* connections inherit it */
        if (bind(t->listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(t->listener, 4096) < 0)
            die("bind");
        getsockname(t->listener, (struct sockaddr *)&address, &size);
        struct epoll_event listening = {.events = EPOLLIN, .data.ptr = &t->listener};
        struct epoll_event ticking = {.events = EPOLLIN, .data.ptr = &t->timer};
        epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->listener, &listening);
        epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->timer, &ticking);
    }
    for (int i = 0; i < thread_count; i++)
        if (pthread_create(&threads[i].id, NULL, run, &threads[i]))
            die("pthread_create");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    char rest[256];
    while (read(0, rest, sizeof rest) > 0)
        ;
    return 0;
}
