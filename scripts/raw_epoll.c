/* The limit that bench_transport.py holds the transport against: the same bytes through the same
 * sockets, with nothing in between but epoll, read and write.
 *
 *   raw_epoll serve ADDRESS REQUEST_BYTES REPLY_BYTES
 *     Prints the address that it got. Then answers each line on stdin with its CPU time so far in
 *     nanoseconds, until stdin ends.
 *   raw_epoll drive ADDRESS REQUEST_BYTES REPLY_BYTES STREAMS
 *     Prints "ready". Then for each line on stdin, a time in microseconds and a pause in
 *     nanoseconds, keeps one request of each stream under way for that time, with so much idle
 *     computing after each step, and prints: the answers got in that time, the messages sent in
 *     all, the time and its CPU time in nanoseconds, and the number of latencies that follow as
 *     uint32 nanoseconds (those of one stream that is alone).
 *
 * ADDRESS is unix:PATH or IPV4:PORT; port 0 takes a free one.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAX_EVENTS 256

struct stream {
    int fd;
    size_t have; /* bytes of the request under way */
    char *request;
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void *allocate(size_t size) {
    void *memory = calloc(1, size);
    if (memory == NULL) fail("calloc");
    return memory;
}

static int64_t nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static socklen_t parse(const char *text, struct sockaddr_storage *address) {
    memset(address, 0, sizeof *address);
    if (strncmp(text, "unix:", 5) == 0) {
        struct sockaddr_un *un = (struct sockaddr_un *)address;
        un->sun_family = AF_UNIX;
        if (strlen(text + 5) >= sizeof un->sun_path) {
            fprintf(stderr, "%s is too long for a socket\n", text);
            exit(1);
        }
        strcpy(un->sun_path, text + 5);
        return sizeof *un;
    }
    struct sockaddr_in *in = (struct sockaddr_in *)address;
    char host[64] = "";
    const char *colon = strrchr(text, ':');
    if (colon != NULL && (size_t)(colon - text) < sizeof host) {
        memcpy(host, text, colon - text);
        in->sin_port = htons(atoi(colon + 1));
    }
    in->sin_family = AF_INET;
    if (inet_pton(AF_INET, host, &in->sin_addr) != 1) {
        fprintf(stderr, "%s is no address\n", text);
        exit(1);
    }
    return sizeof *in;
}

static int make_socket(const struct sockaddr_storage *address) {
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fail("socket");
    return fd;
}

static void set_no_delay(int fd, int family) {
    int one = 1;
    if (family != AF_UNIX && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        fail("TCP_NODELAY");
}

static void print_address(const char *text, int fd) {
    if (strncmp(text, "unix:", 5) == 0) {
        printf("%s\n", text);
    } else {
        struct sockaddr_in in;
        socklen_t size = sizeof in;
        if (getsockname(fd, (struct sockaddr *)&in, &size) != 0) fail("getsockname");
        char host[64];
        inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
        printf("%s:%d\n", host, ntohs(in.sin_port));
    }
    fflush(stdout);
}

static void watch(int epoll, int fd, void *data) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = data};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

static void answer_stdin(void) {
    char line[64];
    if (read(STDIN_FILENO, line, sizeof line) <= 0) exit(0);
    printf("%lld\n", (long long)nanoseconds(CLOCK_PROCESS_CPUTIME_ID));
    fflush(stdout);
}

static void serve(const char *text, size_t request_bytes, size_t reply_bytes) {
    struct sockaddr_storage address;
    socklen_t size = parse(text, &address);
    struct stream listener = {.fd = make_socket(&address)}, control = {.fd = STDIN_FILENO};
    if (bind(listener.fd, (struct sockaddr *)&address, size) != 0) fail("bind");
    if (listen(listener.fd, 4096) != 0) fail("listen");
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0) fail("epoll_create1");
    watch(epoll, listener.fd, &listener);
    watch(epoll, control.fd, &control);
    print_address(text, listener.fd);
    char *reply = allocate(reply_bytes);
    for (;;) {
        struct epoll_event events[MAX_EVENTS];
        int count = epoll_wait(epoll, events, MAX_EVENTS, -1);
        for (int i = 0; i < count; ++i) {
            struct stream *stream = events[i].data.ptr;
            if (stream == &control) {
                answer_stdin();
            } else if (stream == &listener) {
                struct stream *accepted = allocate(sizeof *accepted);
                accepted->fd = accept4(listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (accepted->fd < 0) fail("accept4");
                set_no_delay(accepted->fd, address.ss_family);
                accepted->request = allocate(request_bytes);
                watch(epoll, accepted->fd, accepted);
            } else {
                ssize_t got = read(stream->fd, stream->request + stream->have,
                                   request_bytes - stream->have);
                if (got < 0 && errno == EAGAIN) continue;
                if (got <= 0) {
                    close(stream->fd);
                    free(stream->request);
                    free(stream);
                    continue;
                }
                stream->have += got;
                if (stream->have < request_bytes) continue;
                stream->have = 0;
                /* Its peer waits for it, so that there is room. */
                if (write(stream->fd, reply, reply_bytes) != (ssize_t)reply_bytes) fail("write");
            }
        }
    }
}

static void write_all(int fd, const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t put = write(fd, bytes, size);
        if (put <= 0) fail("write");
        bytes += put;
        size -= put;
    }
}

static void read_all(int fd, char *bytes, size_t size) {
    while (size > 0) {
        ssize_t got = read(fd, bytes, size);
        if (got <= 0) fail("read");
        bytes += got;
        size -= got;
    }
}

static void compute(int64_t pause) {
    if (pause <= 0) return;
    int64_t until = nanoseconds(CLOCK_THREAD_CPUTIME_ID) + pause;
    while (nanoseconds(CLOCK_THREAD_CPUTIME_ID) < until) continue;
}

static void drive(const char *text, size_t request_bytes, size_t reply_bytes, int num_streams) {
    struct sockaddr_storage address;
    socklen_t size = parse(text, &address);
    int *fds = allocate(num_streams * sizeof *fds);
    for (int i = 0; i < num_streams; ++i) {
        fds[i] = make_socket(&address);
        if (connect(fds[i], (struct sockaddr *)&address, size) != 0) fail("connect");
        set_no_delay(fds[i], address.ss_family);
    }
    char *request = allocate(request_bytes), *reply = allocate(reply_bytes);
    size_t capacity = 1 << 16, num_latencies;
    uint32_t *latencies = allocate(capacity * sizeof *latencies);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        long long micros = 0, pause = 0;
        if (sscanf(line, "%lld %lld", &micros, &pause) != 2) fail(line);
        int64_t cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID), start = nanoseconds(CLOCK_MONOTONIC);
        int64_t until = start + 1000 * micros, now = start;
        long long answers = 0, messages = 0;
        num_latencies = 0;
        if (num_streams == 1) {
            while (now < until) {
                write_all(fds[0], request, request_bytes);
                read_all(fds[0], reply, reply_bytes);
                int64_t before = now;
                now = nanoseconds(CLOCK_MONOTONIC);
                if (num_latencies == capacity) {
                    capacity *= 2;
                    latencies = realloc(latencies, capacity * sizeof *latencies);
                    if (latencies == NULL) fail("realloc");
                }
                latencies[num_latencies++] = now - before;
                compute(pause);
                now = pause ? nanoseconds(CLOCK_MONOTONIC) : now;
            }
            answers = messages = num_latencies;
        } else {
            for (int i = 0; i < num_streams; ++i) write_all(fds[i], request, request_bytes);
            messages = num_streams;
            while (now < until) {
                for (int i = 0; i < num_streams; ++i) {
                    read_all(fds[i], reply, reply_bytes);
                    compute(pause);
                    write_all(fds[i], request, request_bytes);
                }
                answers += num_streams;
                now = nanoseconds(CLOCK_MONOTONIC);
            }
            messages += answers;
            for (int i = 0; i < num_streams; ++i) read_all(fds[i], reply, reply_bytes);
        }
        printf("%lld %lld %lld %lld %zu\n", answers, messages, (long long)(now - start),
               (long long)(nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu), num_latencies);
        fwrite(latencies, sizeof *latencies, num_latencies, stdout);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "serve") == 0) {
        serve(argv[2], atol(argv[3]), atol(argv[4]));
    } else if (argc == 6 && strcmp(argv[1], "drive") == 0) {
        drive(argv[2], atol(argv[3]), atol(argv[4]), atoi(argv[5]));
    } else {
        fprintf(stderr, "wanted: raw_epoll serve|drive ADDRESS REQUEST_BYTES REPLY_BYTES "
                        "[STREAMS]\n");
        return 2;
    }
    return 0;
}
