/* Preloaded into a server: the folder POWERCUT_KEPT becomes what a machine would have after a power cut, of the folder POWERCUT_DATA.
 *
 * Whatever is written stays in the system's memory until somebody calls fsync() or fdatasync() for the file: then, and not before, the
 * file is copied. A removed file goes when its folder is synced. So what the server takes for durable without a sync is not there.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE 65536

static void make_parents(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
}

static int keep_file(int from, const struct stat *info, char *path) {
    static __thread char ours[PIECE], theirs[PIECE];
    make_parents(path);
    int to = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (to < 0) return -1;
    flock(to, LOCK_EX); /* of two who sync, the later one has the newer content */
    int from2 = -1;
    if ((fcntl(from, F_GETFL) & O_ACCMODE) == O_WRONLY) {
        char self[64];
        snprintf(self, sizeof self, "/proc/self/fd/%d", from);
        from = from2 = open(self, O_RDONLY | O_CLOEXEC);
    }
    off_t at = 0;
    ssize_t got;
    while ((got = pread(from, ours, PIECE, at)) > 0) {
        if (pread(to, theirs, got, at) != got || memcmp(ours, theirs, got)) {
            if (pwrite(to, ours, got, at) != got) got = -1;
        }
        if (got < 0) break;
        at += got;
    }
    struct stat now;
    if (got == 0 && fstat(to, &now) == 0 && now.st_size != at && ftruncate(to, at) != 0) got = -1;
    if (from2 >= 0) close(from2);
    close(to);
    (void)info;
    return got == 0 ? 0 : -1;
}

static int keep_folder(const char *from, const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char there[2 * PATH_MAX];
        struct stat info;
        snprintf(there, sizeof there, "%s/%s", from, entry->d_name);
        if (entry->d_type == DT_REG && lstat(there, &info) != 0 && errno == ENOENT) unlinkat(dirfd(folder), entry->d_name, 0);
    }
    closedir(folder);
    return 0;
}

static int keep(int fd) {
    const char *data = getenv("POWERCUT_DATA"), *kept = getenv("POWERCUT_KEPT");
    char self[64], from[PATH_MAX], path[2 * PATH_MAX];
    struct stat info;
    if (!data || !kept || fstat(fd, &info) != 0) return fstat(fd, &info);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(self, from, sizeof from - 1);
    size_t root = strlen(data);
    if (length < 0) return -1;
    from[length] = 0;
    if (strncmp(from, data, root) || (from[root] != '/' && from[root] != 0) || info.st_nlink == 0) return 0;
    snprintf(path, sizeof path, "%s%s", kept, from + root);
    return S_ISDIR(info.st_mode) ? keep_folder(from, path) : keep_file(fd, &info, path);
}

int fsync(int fd) { return keep(fd); }

int fdatasync(int fd) { return keep(fd); }
