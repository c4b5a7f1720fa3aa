#!/usr/bin/env python3
"""Unmodified programs under the preloaded library: same output, same exit status, same files.

    tests/unmodified.py [--list] [--quick] [--install] [--venv DIR]... [--backends B,..] [--modes M,..] [--only NAME,..]
                        [--jobs N] [--keep DIR] [--output CSV]
    tests/unmodified.py --measure [--minutes M] ...

Each program of the table is a shell script. It is run without the library twice, which must agree, and then preloaded over
each backend in three modes: `plain`, nothing set; `early`, planned from the first steps on and from 1 KiB on; `kept`, the same with a plan
file, twice: the first run writes it, the second begins with it. Compared are the exit status, both streams, and all files that it
leaves; what is of the moment (times, addresses) is rewritten first, by the program's own rules. What differs is run again, to tell what
happens always from what happens at times.

A program that is not installed is "not run", and the summary says why; --install brings it by apt-get (as root) and pip.
--venv names environments in which packages of PyPI are looked for, before /usr/bin/python3 and the one that runs this.

--measure compares times instead: `stepalloc compare` runs the program in turns under glibc, the backend alone and stepalloc over it. The
limits are 1.05 of the CPU time and 1.03 of the VmHWM of the better of the two. Of a program of few MiB the library's own memory is more than that,
and of one that starts many short processes the loading of the library; the summary names apart those that exceed these.

Exit status: 0 nothing differs, 1 something does (or a program of the table varies by itself), 2 wrong arguments, 130 interrupted.
"""
import argparse, concurrent.futures, csv, difflib, fnmatch, hashlib, json, math, os, pathlib, random, re, \
    shlex, shutil, signal, socket, statistics, subprocess, sys, tempfile, threading, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
BACKENDS = ("glibc", "jemalloc", "mimalloc")
SMALL = {"START_STATISTIC_STEP": "2", "STABLE_STATISTIC_STEP": "2", "MAX_STATISTIC_STEP": "10", "STEPALLOC_MIN_BYTES": "1024"}
MODES = ("plain", "early", "kept")
CPU_LIMIT, PEAK_LIMIT = 1.05, 1.03
# Code and data of the library in each process, which is more than PEAK_LIMIT of one of a few MiB: the summary names apart who takes more.
LIBRARY_BYTES = 512 << 10
# CPU time in which the system loads the library into a process, and copies what is mapped when it forks: more than CPU_LIMIT of one that ends
# at once, and told apart likewise.
LOAD_SECONDS = 0.0005
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
VENVS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "unmodified-venvs"

# What is rewritten in every output: a unittest's time, addresses in memory, the process of which the shell tells that it was killed, ports.
ALWAYS = [(r"^(Ran \d+ tests? in )[\d.]+s", r"\1"), (r"\b0x[0-9a-f]{6,}", "0x"), (r"(script\.sh: line \d+: +)\d+ ", r"\1"), (r"127\.0\.0\.1:\d+", "127.0.0.1")]
PYTEST = [(r" in [\d.]+s( \([\d:]+\))?", "")]


class Program:
    """A row of the table."""

    def __init__(self, name, script, *, deb="", needs="", pip="", prepare="", normal=(), ignore="", timeout=120, quick=False,
                 may_fail=False, root=False, env=None, group="programs", files=None):
        self.name, self.script, self.prepare = name, script, prepare
        # Debian's packages; commands or files that must be there; modules as `module` or `module=package`.
        self.deb, self.needs, self.pip = deb.split(), needs.split(), [one.partition("=") for one in pip.split()]
        self.normal, self.ignore, self.timeout, self.quick = [*ALWAYS, *normal], ignore.split(), timeout, quick
        # Suites of others fail here and there; what matters is that they fail alike.
        self.may_fail = may_fail
        self.root, self.env, self.group, self.files = root, env or {}, group, files or {}


# ---- The table. A script runs in an empty folder; COMMON has inputs for all, IN what `prepare` and `files` made, PORT is free.

MIX_C = r"""
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* Steps of blocks of all sizes in four threads, each freed by another, and every function that one allocator may have and another not. */
static void *mailbox[4][64];
static pthread_barrier_t barrier;
static uint64_t sums[4];
static void fill(unsigned char *p, size_t n, unsigned v) { for (size_t i = 0; i < n; i += 61) p[i] = v + i; if (n) p[n - 1] = v; }
static uint64_t sum(const unsigned char *p, size_t n) { uint64_t s = 0; for (size_t i = 0; i < n; i += 61) s = s * 31 + p[i]; return s; }
static void *work(void *arg) {
    long me = (long)arg;
    for (int step = 0; step < 60; step++) {
        size_t sizes[64];
        for (int i = 0; i < 64; i++) {
            size_t n = sizes[i] = 1000 + (i * 7919u + me * 977u) % 90000;
            void *p = 0;
            switch (i % 8) {
            case 0: p = malloc(n); break;
            case 1: p = calloc(1, n); if (((char *)p)[n - 1]) abort(); break;
            case 2: p = realloc(malloc(n / 2), n); break;
            case 3: if (posix_memalign(&p, 64 << (i % 5), n)) abort(); break;
            case 4: p = aligned_alloc(4096, (n + 4095) & ~4095ul); break;
            case 5: p = memalign(128, n); break;
            case 6: p = reallocarray(malloc(10), n, 1); break;
            default: p = valloc(n);
            }
            if (!p || malloc_usable_size(p) < n) abort();
            fill(p, n, step + i);
            mailbox[me][i] = p;
        }
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < 64; i++) {
            unsigned char *p = mailbox[(me + 1) % 4][i];
            sums[me] = sums[me] * 33 + sum(p, 1000);
            if (i % 3 == 0) p = reallocarray(p, 200000 + i, 1);
            free(p);
        }
        pthread_barrier_wait(&barrier);
    }
    return 0;
}
int main(void) {
    for (int round = 0; round < 2; round++) {
        pthread_t threads[4];
        pthread_barrier_init(&barrier, 0, 4);
        for (long i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, (void *)i);
        for (long i = 0; i < 4; i++) pthread_join(threads[i], 0);
        printf("%llx %llx %llx %llx\n", (long long)sums[0], (long long)sums[1], (long long)sums[2], (long long)sums[3]);
        fflush(stdout);
        pid_t child = fork();
        if (!child) { work_alone: for (int i = 0; i < 300; i++) { char *p = malloc(50000 + i); fill((void *)p, 50000, i); free(p); } malloc_trim(0); _exit(7); }
        int status; waitpid(child, &status, 0);
        printf("child %d\n", WEXITSTATUS(status));
        char *line = 0; size_t room = 0; FILE *f = fopen("/proc/self/cmdline", "r");
        if (getdelim(&line, &room, 0, f) <= 0) abort();
        fclose(f); free(line);
        char *copy = strdup("copied"), *printed; if (asprintf(&printed, "%s %d", copy, round) < 0) abort();
        puts(printed); free(copy); free(printed);
        char *path = realpath("/usr/../usr/bin", 0); puts(path); free(path);
        struct mallinfo2 info = mallinfo2(); (void)info;
        mallopt(M_ARENA_MAX, 2); malloc_trim(0);
        if (0) goto work_alone;
    }
    return 3;
}
"""

MIX_CC = r"""
#include <algorithm>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>
struct alignas(256) Wide { double v[32]; };
static unsigned long work(unsigned seed) {
    unsigned long total = 0;
    for (int step = 0; step < 40; step++) {
        std::vector<std::vector<double>> layers;
        for (int i = 0; i < 30; i++) layers.emplace_back(4096 + 512 * i, seed + i);
        std::map<int, std::string> names;
        for (int i = 0; i < 400; i++) names[(i * 7919 + seed) % 1009] += std::string(1 + i % 90, 'a' + i % 26);
        auto wide = std::make_unique<Wide[]>(64);
        wide[63].v[31] = seed;
        if (reinterpret_cast<unsigned long>(wide.get()) % 256) return 1;
        char *raw = new (std::nothrow) char[100000];
        std::fill(raw, raw + 100000, 'x');
        delete[] raw;
        for (auto &layer : layers) total += layer.back();
        for (auto &[key, name] : names) total = total * 31 + key + name.size();
        total += wide[63].v[31];
    }
    return total;
}
int main() {
    for (int round = 0; round < 3; round++) {
        std::vector<std::future<unsigned long>> parts;
        for (unsigned i = 0; i < 4; i++) parts.push_back(std::async(std::launch::async, work, i));
        for (auto &part : parts) std::printf("%lx\n", part.get());
    }
#ifndef ENDS_WITHOUT_MEMORY /* mimalloc 2.0 does */
    try { std::vector<char> none(~0ul >> 2); } catch (const std::bad_alloc &) { std::puts("bad_alloc"); }
#endif
    return 0;
}
"""

MANY_C = "".join(
    f"int f{i}(int a, int b) {{ int s = 0; for (int j = 0; j < a; j++) s += j % {i % 7 + 2} == b ? j * {i} : s ^ b; return s; }}\n"
    for i in range(150))
MAIN_C = "#include <stdio.h>\n" + "".join(f"int f{i}(int, int);\n" for i in range(150)) + \
    "int main(void) { unsigned s = 0;\n" + "".join(f"s = s * 31 + f{i}(40, {i % 3});\n" for i in range(150)) + \
    'printf("%u\\n", s); return 5; }\n'
REGEX_CC = r"""
#include <iostream>
#include <map>
#include <regex>
#include <string>
int main() {
    std::map<std::string, int> count;
    std::string text;
    for (int i = 0; i < 3000; i++) text += "word" + std::to_string(i * i % 97) + ' ';
    std::regex word("[a-z]+([0-9]+)");
    for (std::sregex_iterator it(text.begin(), text.end(), word), end; it != end; ++it) count[(*it)[1]]++;
    for (auto &[w, n] : count) std::cout << w << ' ' << n << '\n';
}
"""

PY_MIX = r"""
import collections, concurrent.futures, ctypes, decimal, gc, hashlib, io, itertools, json, multiprocessing, os, pickle, queue, random, re
import struct, subprocess, sys, tempfile, threading, time, zlib, bz2, lzma, sqlite3, array, mmap
def part(seed):
    dice = random.Random(seed)
    total = 0
    for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 30):
        rows = [array.array("d", (dice.random() for _ in range(200))) * 40 for _ in range(12)]
        blob = b"".join(row.tobytes() for row in rows)
        total = zlib.crc32(zlib.compress(blob, 1), total)
        back = bytearray(blob); back.extend(blob[:50000]); back = back[::-1]
        total ^= hash(bytes(back[:100])) & 0
    return total
if __name__ == "__main__":
    x = [dict(a=i, b=[i] * 9, c=str(i)) for i in range(8000)]
    print(len(json.dumps(json.loads(json.dumps(x)))), len(pickle.loads(pickle.dumps(x))))
    with concurrent.futures.ThreadPoolExecutor(4) as pool: print(list(pool.map(part, range(4))))
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(2) as pool: print(way, pool.map(part, range(3)))
    print(subprocess.run([sys.executable, "-c", "print(len(bytearray(10**7)))"], capture_output=True).stdout)
    print(len(bz2.decompress(bz2.compress(bytes(10**6)))), len(lzma.decompress(lzma.compress(bytes(10**6)))))
    pid = os.fork()
    if not pid:
        y = [bytearray(70000 + i) for i in range(100)]; os._exit(len(y))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    decimal.getcontext().prec = 3000
    print(hashlib.sha256(str(decimal.Decimal(2).sqrt()).encode()).hexdigest())
    print(collections.Counter(re.findall(r"\w", json.dumps(x[:500]))).most_common(5))
    gc.collect()
    sys.exit(9)
"""


def suite(name, tests, **more):
    """A part of CPython's own suites, with the result of each test."""
    return Program("cpython " + name, f"/usr/bin/python3 -m unittest -v {tests}",
                   deb="python3 libpython3.11-testsuite", needs="/usr/bin/python3 /usr/lib/python3.11/test/test_gc.py",
                   may_fail=True, ignore="tmp/*", **more)


def linked(name, deb, flags, needs=""):
    """A program with another allocator linked in."""
    return [Program(f"{name} in {kind}", "$IN/program; echo $?", deb=deb, needs=f"gcc g++ {needs}",
                    files={f"mix.{kind}": MIX_C if kind == "c" else MIX_CC},
                    prepare=f"{'gcc' if kind == 'c' else 'g++ -std=c++17'} -O1 -o $IN/program $IN/mix.{kind} -pthread {flags}")
            for kind in ("c", "cc")]


def torch(name, text, **more):
    return Program("torch " + name, "$PY $IN/main.py", pip="torch", files={"main.py": text}, group="torch",
                   **{"timeout": 300, "ignore": "* */*", **more})


def python(name, pip, text, **more):
    return Program(name, "$PY $IN/main.py", pip=pip, files={"main.py": text}, **{"timeout": 300, **more})


# Servers that refuse to be root. (The program `setuid` shows setpriv itself under the library.)
AS_NOBODY = r"""
as=; if [ "$(id -u)" = 0 ]; then as="env LD_PRELOAD= setpriv --reuid=65534 --regid=65534 --clear-groups env LD_PRELOAD=${LD_PRELOAD:-}"; chown 65534:65534 .; fi
"""
UNTIL = r"""
until_ok() { for _ in $(seq 600); do if "$@" > /dev/null 2>&1; then return 0; fi; sleep 0.05; done; echo "never: $*"; return 1; }
"""

PROGRAMS = [
    # Of a minimal Debian.
    Program("bash", r"""
declare -A sum
for ((i = 0; i < 12000; i++)); do k=$((i * i % 997)); sum[$k]=$((${sum[$k]:-0} + i)); done
for k in $(printf '%s\n' "${!sum[@]}" | sort -n | head -n 60); do echo "$k ${sum[$k]}"; done
text=$(head -c 200000 "$COMMON/numbers"); echo "${#text}"; part=${text:5000:3000}; echo "${part//7/seven}" | cksum
mapfile -t lines < "$COMMON/numbers"; echo "${#lines[@]} ${lines[777]}"
(trap 'echo trapped' USR1; kill -USR1 $BASHPID; exit 3) || echo "status $?"
f() { local n=$1; if ((n < 2)); then echo 1; else echo $(($(f $((n - 1))) + $(f $((n - 2))))); fi; }; f 7
for i in 1 2 3; do (sleep 0.0$i; exit $i) & done; for job in $(jobs -p); do wait $job || echo "job $?"; done
cat <<< "here $((2 ** 20))"; echo "${lines[@]:1:3}" > file; read -r a b < file; echo "$b $a"; exit 17
""", may_fail=True, quick=True),
    Program("coreutils", r"""
N=$COMMON/numbers
sort --parallel=2 -n $N > sorted; sort -k2,2n -k1,1 -S 300K -T . $N | uniq -c | cksum
cut -d' ' -f2 $N | sort | uniq -c | sort -rn | head -n 5; sort -k2 $N > a; sort -k2 -r $N | sort -k2 > b; join -j 2 a b | head -n 50000 | cksum
paste a b | tr 0-9 a-j | fold -w 60 | expand | unexpand -a | cksum; shuf --random-source=$COMMON/bytes $N | cksum; comm -12 a sorted | wc
split -l 9999 -d $N part.; cat part.* | md5sum; tac $N | nl | od -An -tx1 | tail -n 2; sha256sum $COMMON/bytes; b2sum $COMMON/bytes
base64 $COMMON/bytes | base64 -d | cmp - $COMMON/bytes; factor 1234567890123456789; seq 1 3 100 | numfmt --to=iec | tail -n 1; csplit -s $N 100 200; tsort <<< 'a b b c'
dd if=$COMMON/bytes of=out bs=70000 2> /dev/null; stat -c %s out; head -c 999999 out | tail -c 5 | od -c; printf '%s\n' {1..2000} | pr -4 -t | cksum; date -u -d @0
cp -r . ../copy.$$; rm -r ../copy.$$; truncate -s 5000 out; wc -c out; expr 7 '*' 6; test -f nothing || false
""", quick=True, may_fail=True),
    Program("findutils", r"""
find /usr/share/doc /usr/lib/x86_64-linux-gnu -xdev -type f -size +20k 2> /dev/null | sort | cksum
find /usr/share/perl /usr/bin -name 'p*' -printf '%s %m %p\n' | sort -n | tail -n 20; ls -lR /usr/share/doc | cksum
seq 5000 | xargs -n 100 -P 1 echo | cksum; du -a /usr/share/perl | sort -n | tail -n 2; locale -a | cksum
""", quick=True),
    Program("grep", r"""grep -cE '([0-9])7\1' $COMMON/numbers; grep -nF -f <(head -n 40 $COMMON/numbers) $COMMON/numbers | cksum; grep -rlP 'use (strict|warnings)' /usr/share/perl | sort | cksum; grep -q nothing $COMMON/numbers""",
            may_fail=True, quick=True),
    Program("sed", r"""sed 's/1\(.\)/<\1>/g; 5000q' $COMMON/numbers | cksum; sed -n '$!{h;d};H;x;s/\n/+/p' $COMMON/numbers; head -n 2000 $COMMON/numbers > f; sed -i.old -E ':a;s/^([0-9]+)([0-9]{3})/\1,\2/;ta' f; sed -e '1!G;h;$!d' <(head -n 300 f) | cksum""", quick=True),
    Program("awk", r"""
awk '{ sum[$2] += $1; line[NR] = $0 } END { for (i = 0; i < 1000; i++) print i, sum[i]; print length(line) }' $COMMON/numbers | cksum
awk 'BEGIN { srand(3); for (i = 0; i < 60000; i++) { s = s sprintf("%c", 97 + i % 26); if (i % 500 == 0) t[s] = i }; for (k in t) n += length(k); print n }'
""", quick=True),
    Program("tar gzip", r"""mkdir d; cp $COMMON/* d; tar --sort=name --mtime=@0 --owner=0 --group=0 -cf - d | gzip -6nc > t.gz; cksum t.gz; mkdir e; tar -xzf t.gz -C e; diff -r d e/d; gzip -l t.gz; zcat t.gz | tar -tf - | wc -l; ! gzip -t $COMMON/bytes""", quick=True),
    Program("bzip2", r"""head -c 500000 $COMMON/numbers | bzip2 -c > b; bzip2 -dc b | cksum; bzip2 -t b; head -c 3000 b > c; ! bzip2 -t c""", needs="bzip2", deb="bzip2", quick=True),
    Program("xz", r"""head -c 500000 $COMMON/numbers | xz -T2 --block-size=200000 -1c > x; cksum x; xz -T2 -dc x | cksum; xz -lv x | tail -n 5; xz --format=lzma -1c $COMMON/bytes | xz -dc | cmp - $COMMON/bytes""", needs="xz", deb="xz-utils", quick=True),
    Program("zstd", r"""zstd -q -T2 -5 -c $COMMON/numbers > z; zstd -dqc z | cksum; zstd -q -12 --long=24 -c $COMMON/bytes | zstd -dqc --long=24 | cmp - $COMMON/bytes; zstd -q --train $IN/s/* -o dict --maxdict=20000 2> /dev/null; cksum dict""",
            needs="zstd", deb="zstd", prepare="mkdir $IN/s; split -l 300 $COMMON/numbers $IN/s/", quick=True),
    Program("diffutils", r"""head -n 4000 $COMMON/numbers > a; sort a > b; diff a b | tail -n 3; diff -u --label a --label b a b > p || echo differ; patch -s a p && cmp a b; sdiff -w 60 -s <(head -n 500 $COMMON/numbers) <(head -n 600 b) | cksum; diff3 a b p | cksum || true""",
            needs="diff patch", deb="diffutils patch", quick=True),
    Program("git", r"""
git() { /usr/bin/git -c gc.auto=0 -c init.defaultBranch=main -c user.name=n -c user.email=e -c pack.threads=2 "$@"; }
export GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z' GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
git init -q r; cd r; cp $COMMON/numbers text
for i in 1 2 3 4; do sed -i "${i}0~97d" text; cp $COMMON/many.c m$i.c; git add .; git commit -qm "change $i"; done
git log -p --stat | cksum; git blame text | tail -n 2 | cut -c1-8; git checkout -qb side HEAD~3; echo side >> text; git commit -qam side; git merge -q main -m merge || true; git status --short
git repack -adfq; git fsck --strict 2>&1; git clone -q --bare . ../c.git; git -C ../c.git rev-parse main; git diff main~1 main | cksum; git grep -c 'return s' main | wc -l; git bundle create -q ../b main; cksum ../b; git archive main | cksum; git show nothing
""", needs="/usr/bin/git", deb="git", ignore="r/* c.git/*", may_fail=True, quick=True),
    Program("gcc", r"""gcc -O1 -c $COMMON/many.c -o many.o; gcc -g -O1 -o p $IN/main.c many.o; ./p || echo $?; gcc -E $IN/main.c | cksum; ! gcc -c $IN/wrong.c""", needs="gcc", deb="gcc libc6-dev",
            files={"main.c": MAIN_C, "wrong.c": "int f(void) { return g(1, }\n"}, quick=True),
    Program("g++ -flto", r"""g++ -std=c++17 -O1 -flto=2 -o p $IN/regex.cc && ./p; cksum < p""", needs="g++", deb="g++", files={"regex.cc": REGEX_CC}),
    Program("gcc -flto", r"""gcc -O1 -flto=2 -frandom-seed=1 -c $COMMON/many.c $IN/main.c && gcc -O1 -flto=2 -o p many.o main.o; ./p || echo $?""", needs="gcc", deb="gcc libc6-dev",
            files={"main.c": MAIN_C}, quick=True, ignore="*.o"),
    Program("make -j2", r"""
for i in 1 2 3 4 5 6 7 8; do echo "int g$i(int x) { return x * $i; }" > g$i.c; done; cp $IN/main.c $COMMON/many.c .
cat > Makefile <<'END'
p: $(patsubst %.c,%.o,$(sort $(wildcard *.c)))
	@$(CC) -o $@ $^
%.o: %.c
	@$(CC) -O0 -c -o $@ $<
wrong: p
	@false
END
make -s -j2 p; ./p || echo $?; make -n p; make -pn | grep -c '^[^#]' > /dev/null; make -s wrong
""", needs="make gcc", deb="make gcc libc6-dev", files={"main.c": MAIN_C}, may_fail=True, quick=True),
    Program("binutils", r"""gcc -g -c $COMMON/many.c; objdump -d many.o | cksum; readelf -aW many.o | cksum; nm -S many.o | sort | tail -n 2; strip -o s.o many.o; objcopy -O binary -j .text s.o t; ar rcsD l.a s.o; ar t l.a; strings -n 8 /usr/bin/gcc | cksum; addr2line -e many.o 0x40; ld -r -o r.o s.o""",
            needs="gcc objdump", deb="gcc binutils", quick=True),
    Program("python", "/usr/bin/python3 $IN/mix.py", needs="/usr/bin/python3", deb="python3", files={"mix.py": PY_MIX}, may_fail=True),
    Program("python short", "/usr/bin/python3 $IN/mix.py 3", needs="/usr/bin/python3", deb="python3", files={"mix.py": PY_MIX}, may_fail=True, quick=True),
    Program("python malloc", "/usr/bin/python3 $IN/mix.py", needs="/usr/bin/python3", deb="python3", files={"mix.py": PY_MIX}, may_fail=True, env={"PYTHONMALLOC": "malloc"}),
    Program("perl", r"""
perl -ne 'my @w = split; push @{$h{$w[1]}}, $w[0]; END { print scalar(@{$h{$_}}), "\n" for sort keys %h }' $COMMON/numbers | cksum
perl -e 'my $s = "x" x 100000; for my $i (1 .. 60) { my @a = map { $_ x 900 } ("a" .. "z"); $s .= join "", @a; $s =~ s/x(.)/$1x/g if $i % 20 == 0 } print length($s), "\n"; my $pid = fork; if (!$pid) { exit 4 } wait; print $? >> 8, "\n"; die "end\n"'
""", needs="perl", deb="perl", may_fail=True, quick=True),
    Program("sqlite3", r"""sqlite3 :memory: < $COMMON/t.sql | cksum; sqlite3 f.db < $COMMON/t.sql | cksum; sqlite3 f.db 'pragma integrity_check; vacuum; select count(*), max(b) from t; with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000) select sum(i * i) from n;' .dump | cksum; sqlite3 f.db 'select nothing from t'""",
            needs="sqlite3", deb="sqlite3", may_fail=True, quick=True),
    Program("openssl", r"""openssl enc -aes-256-ctr -K 00 -iv 00 -in $COMMON/bytes 2> /dev/null | cksum; openssl dgst -sha3-256 $COMMON/numbers; openssl genpkey -algorithm ED25519 -out k; openssl req -x509 -key k -subj /CN=x -out c.pem; openssl x509 -in c.pem -noout -subject; openssl verify -CAfile c.pem c.pem; openssl prime 1000003; ! openssl x509 -in <(head -c 2000 $COMMON/numbers) 2> /dev/null""",
            needs="openssl", deb="openssl", ignore="k c.pem", quick=True),
    Program("bc", r"""echo 'scale=400; 4*a(1); e(1)' | bc -l; echo '2^4000' | bc | cksum""", needs="bc", deb="bc", quick=True),
    Program("dpkg", r"""dpkg-query --list | cksum; dpkg -L bash | cksum; dpkg --compare-versions 1.2 lt 1.10; dpkg-deb --version | head -n 1""", needs="dpkg-query", quick=True),
    Program("c threads fork", "$IN/program; echo $?", needs="gcc", deb="gcc libc6-dev", files={"mix.c": MIX_C}, prepare="gcc -O1 -o $IN/program $IN/mix.c -pthread", quick=True),
    Program("c++ threads", "$IN/program", needs="g++", deb="g++", files={"mix.cc": MIX_CC}, prepare="g++ -std=c++17 -O1 -o $IN/program $IN/mix.cc -pthread"),
    Program("static", "$IN/program; echo $?; /sbin/ldconfig -p | wc -l", needs="gcc", deb="gcc libc6-dev", files={"mix.c": MIX_C}, prepare="gcc -O1 -static -o $IN/program $IN/mix.c -pthread", quick=True),
    # It warns where its process has more than one thread.
    Program("python 3.12 fork", "$NEW_PYTHON $IN/main.py", needs="?python3.12", files={"main.py": r"""
import os
blocks = [bytearray(b"x" * (4 << 20)) for _ in range(30)]
pid = os.fork()
if not pid: os._exit(7)
print(len(blocks), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""}, normal=[(r"\(pid=\d+\)", "")]),
    Program("file man", r"file /usr/bin/* /usr/lib/x86_64-linux-gnu/* 2>&1 | cksum; MANPAGER=cat MANWIDTH=80 man -l $IN/x.1 2>&1 | cksum", needs="file man groff", deb="file man-db groff", files={
        "x.1": ".TH X 1\n" + "".join(f".SH S{i}\ntext \\fBbold\\fR {i} some words go here\n" for i in range(3000))}),
    Program("setuid", r"""
cp /usr/bin/sort sort; cp /usr/bin/id id; chmod 4755 sort id; as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
"${as[@]}" ./id -u -n; "${as[@]}" ./sort --parallel=2 -n $COMMON/numbers | cksum; chown 65534 id; ./id -u; "${as[@]}" grep -c 7 $COMMON/numbers; chmod 2755 id; ./id -g
""", needs="setpriv", deb="util-linux", root=True, quick=True),
    # A process that is to have one thread only, large and small: the kernel refuses others a new user namespace.
    Program("unshare", "unshare -U true; echo $?; $IN/large", needs="unshare gcc", deb="util-linux gcc libc6-dev", prepare="gcc -o $IN/large $IN/large.c", quick=True, files={"large.c": r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) { for (int i = 0; i < 30; i++) memset(malloc(3 << 20), 1, 3 << 20); if (unshare(CLONE_NEWUSER)) perror("unshare"); else puts("unshared"); return 0; }
"""}),
    *linked("jemalloc", "libjemalloc-dev gcc g++", "-Wl,--push-state,-Bstatic -ljemalloc -Wl,--pop-state -lm -ldl -lstdc++", "/usr/include/jemalloc/jemalloc.h"),
    *linked("shared jemalloc", "libjemalloc-dev gcc g++", "-Wl,--no-as-needed -ljemalloc", "/usr/include/jemalloc/jemalloc.h"),
    *linked("tcmalloc", "libgoogle-perftools-dev gcc g++", "-Wl,--push-state,-Bstatic -Wl,--whole-archive -ltcmalloc_minimal -Wl,--no-whole-archive,--pop-state -lstdc++ -lm", "/usr/include/gperftools/tcmalloc.h"),
    *linked("shared tcmalloc", "libgoogle-perftools-dev gcc g++", "-Wl,--no-as-needed -ltcmalloc_minimal", "/usr/include/gperftools/tcmalloc.h"),
    *linked("mimalloc", "libmimalloc-dev gcc g++", "$(find /usr/lib -name 'mimalloc*.o' -o -name 'libmimalloc*.a' | sort -r | head -n 1)", "/usr/lib/x86_64-linux-gnu/cmake"),
    *linked("shared mimalloc", "libmimalloc-dev gcc g++", "-DENDS_WITHOUT_MEMORY -Wl,--no-as-needed -lmimalloc", "/usr/lib/x86_64-linux-gnu/libmimalloc.so"),
    # Static: musl's own loader stops with an error where a library built for glibc, any of them, is in LD_PRELOAD.
    Program("musl", "$IN/program", needs="musl-gcc", deb="musl-tools", files={"m.c": r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) { unsigned s = 0; for (int i = 0; i < 3000; i++) { char *p = malloc(1000 + i * 40); memset(p, i, 1000); s = s * 31 + p[i % 1000]; p = realloc(p, 200000); free(p); } printf("%u\n", s); return 0; }
"""}, prepare="musl-gcc -static -O1 -o $IN/program $IN/m.c"),
    # CPython's own suites.
    suite("test_gc", "test.test_gc test.test_dict test.test_list"),
    Program("cpython test_capi", "$PY -m unittest -v test.test_capi.test_codecs test.test_capi.test_getargs test.test_capi.test_structmembers test.test_capi.test_unicode; $PY -m unittest -v -k Mem -k mem -k CAPITest -k Subinterp -k Pymem -k Thread test.test_capi.test_misc", pip="test.test_capi _testcapi", may_fail=True, timeout=300),
    Program("cpython test_sqlite3", "$PY -m unittest -v test.test_sqlite3", pip="test.test_sqlite3 _sqlite3", may_fail=True, timeout=300),
    suite("test_asyncio", "test.test_asyncio.test_base_events test.test_asyncio.test_streams test.test_asyncio.test_queues"),
    # Its resource tracker writes to the same standard error whenever it likes, so only the sums are compared.
    Program("cpython test_multiprocessing_fork", "/usr/bin/python3 -m unittest test.test_multiprocessing_fork.WithProcessesTestPool test.test_multiprocessing_fork.WithProcessesTestSharedMemory test.test_multiprocessing_fork.WithProcessesTestQueue test.test_multiprocessing_fork.WithManagerTestQueue 2>&1 | grep -E '^(Ran|OK|FAILED)'; echo ${PIPESTATUS[0]}",
            deb="python3 libpython3.11-testsuite", needs="/usr/bin/python3 /usr/lib/python3.11/test/test_gc.py", may_fail=True, ignore="tmp/*", timeout=300),
    suite("test_multiprocessing_spawn", "test.test_multiprocessing_spawn.WithProcessesTestQueue test.test_multiprocessing_spawn.WithProcessesTestValue", timeout=300),
    suite("test_multiprocessing_forkserver", "test.test_multiprocessing_forkserver.WithProcessesTestQueue test.test_multiprocessing_forkserver.WithProcessesTestEvent", timeout=300),
    suite("test_threading", "test.test_threading.ThreadTests test.test_threading_local", timeout=300, normal=[(r"^(task <thread|\d+ tasks are running|<thread ).*\n", "")]),
    suite("test_mmap", "test.test_mmap test.test_array test.test_memoryview test.test_struct"),
    suite("test_bytes", "test.test_bytes test.test_memoryio"),
    suite("test_io", "-k CBuffered -k CIO -k CMisc -k CTextIO test.test_io", timeout=300),
    suite("test_posix", "test.test_posix test.test_fork1", timeout=300),
    suite("test_subprocess", "test.test_subprocess.POSIXProcessTestCase", timeout=300),
    suite("test_ctypes", "test.test_ctypes"),
    suite("test_zlib", "test.test_zlib test.test_binascii"),
    suite("test_faulthandler", "-k sig -k fatal -k stack_overflow -k abrt test.test_faulthandler", timeout=300),
    # Languages.
    Program("node", "node $IN/main.js; node -e 'process.exit(12)'", needs="node", deb="nodejs", may_fail=True, files={"main.js": r"""
const { Worker, isMainThread, parentPort } = require('worker_threads');
const zlib = require('zlib'), crypto = require('crypto');
if (!isMainThread) { let s = 0; for (let i = 0; i < 200; i++) s += Buffer.alloc(60000, i % 251)[i] + new Float64Array(9000).fill(i)[3]; parentPort.postMessage(s); }
else {
  for (let i = 0; i < 40; i++) { const b = Buffer.alloc(200000, i); const z = zlib.gunzipSync(zlib.gzipSync(b)); if (!z.equals(b)) throw 1; }
  console.log(crypto.createHash('sha256').update(Buffer.alloc(3e6, 7)).digest('hex'), crypto.pbkdf2Sync('p', 's', 2000, 32, 'sha512').toString('hex'));
  const m = new Map(); for (let i = 0; i < 2e5; i++) m.set('k' + (i * i % 99991), JSON.stringify({ i, a: [i, i + 1] })); console.log(m.size);
  Promise.all([1, 2, 3].map(() => new Promise(r => new Worker(__filename).on('message', r)))).then(v => console.log(v));
}
"""}),
    Program("ruby", "ruby $IN/main.rb", needs="ruby", deb="ruby", may_fail=True, files={"main.rb": r"""
require 'json'; require 'zlib'; require 'digest'
x = (0...20000).map { |i| { 'a' => i, 'b' => [i] * 5, 'c' => i.to_s * 3 } }
puts JSON.generate(JSON.parse(JSON.generate(x))).size
60.times { |i| s = ('a'..'z').to_a.join * 3000; z = Zlib::Inflate.inflate(Zlib::Deflate.deflate(s)); raise unless z == s }
puts 4.times.map { |t| Thread.new { (1..200).map { |i| ('x' * (2000 + i * 300)).sum }.sum } }.map(&:value).inspect
puts Digest::SHA256.hexdigest((1..50000).to_a.join(',')); pid = fork { exit 4 }; Process.wait(pid); puts $?.exitstatus
GC.start; GC.compact rescue nil; exit 6
"""}),
    Program("php", "php -d memory_limit=512M $IN/main.php; echo $?", needs="php", deb="php-cli", files={"main.php": r"""<?php
$x = []; for ($i = 0; $i < 60000; $i++) $x["k" . ($i * $i % 9973)][] = str_repeat("v$i", 3);
ksort($x); echo count($x), " ", md5(json_encode($x)), "\n";
for ($i = 0; $i < 200; $i++) { $s = str_repeat(chr(97 + $i % 26), 100000 + 700 * $i); $t = strrev($s . $i); } echo md5($t), "\n";
echo strlen(serialize(unserialize(serialize($x)))), " ", preg_match_all('/(\d+)v/', json_encode($x)), "\n"; exit(3);
"""}),
    Program("lua", "lua5.4 $IN/main.lua; luajit $IN/main.lua", needs="lua5.4 luajit", deb="lua5.4 luajit", files={"main.lua": r"""
local t = {}
for i = 1, 200000 do t[#t + 1] = ("%d:%s"):format(i * i % 9973, ("x"):rep(i % 40)) end
table.sort(t); local s = table.concat(t, ","); print(#s, s:sub(1000, 1040), select(2, s:gsub("x+", "y")))
for i = 1, 60 do local u = {}; for j = 1, 3000 do u[j] = j * i end; collectgarbage("step") end
print(pcall(error, "e")); collectgarbage()
"""}),
    Program("tcl", "tclsh $IN/main.tcl", needs="tclsh", deb="tcl", files={"main.tcl": r"""
for {set i 0} {$i < 60000} {incr i} { lappend t([expr {$i * $i % 997}]) [string repeat x [expr {$i % 50}]] }
set n 0; foreach k [lsort -integer [array names t]] { incr n [string length [join $t($k) ,]] }; puts $n
puts [string length [regsub -all {x(.)} [string repeat xyz 60000] {\1}]]; puts [catch {error e} m]$m
"""}),
    Program("guile", "guile --no-auto-compile $IN/main.scm", needs="guile", deb="guile-3.0", files={"main.scm": r"""
(define t (make-hash-table)) (do ((i 0 (+ i 1))) ((= i 60000)) (hash-set! t (modulo (* i i) 9973) (make-string (+ 1 (modulo i 90)) #\x)))
(display (hash-fold (lambda (k v n) (+ n (string-length v))) 0 t)) (newline) (display (modulo (expt 7 20000) 1000007)) (newline)
(do ((i 0 (+ i 1))) ((= i 200)) (make-bytevector 60000 1)) (display (string-length (number->string (expt 3 9000)))) (newline)
""".replace("(define", "(use-modules (rnrs bytevectors))\n(define", 1)}),
    Program("ocaml", "ocaml $IN/main.ml", needs="ocaml", deb="ocaml-nox", files={"main.ml": r"""
let t = Hashtbl.create 16
let () = for i = 0 to 100000 do Hashtbl.replace t (i * i mod 9973) (String.make (i mod 300) 'x') done;
  let n = Hashtbl.fold (fun _ v n -> n + String.length v) t 0 in Printf.printf "%d\n" n;
  for i = 0 to 300 do ignore (Array.make (20000 + i) 1.5) done; Gc.compact ();
  let a = Array.init 200000 (fun i -> i * 7919 mod 100003) in Array.sort compare a; Printf.printf "%d %d\n" a.(5) a.(199999)
"""}),
    Program("sbcl", "sbcl --noinform --non-interactive --no-userinit --no-sysinit --load $IN/main.lisp", needs="sbcl", deb="sbcl", files={"main.lisp": r"""
(let ((h (make-hash-table :test 'equal))) (dotimes (i 60000) (push i (gethash (format nil "k~d" (mod (* i i) 997)) h)))
  (format t "~d~%" (hash-table-count h)) (gc :full t) (format t "~d~%" (mod (expt 7 30000) 1000007)))
"""}),
    Program("erlang", r"""erl -noshell -eval 'L = lists:seq(1, 100000), S = self(), [spawn(fun() -> S ! {I, erlang:phash2(lists:sort([X * X rem (997 + I) || X <- L]))} end) || I <- lists:seq(1, 6)], io:format("~p~n", [lists:sort([receive M -> M end || _ <- lists:seq(1, 6)])]), B = binary:copy(<<"abc">>, 300000), io:format("~p~n", [erlang:crc32(zlib:uncompress(zlib:compress(B)))]), halt(7).'""",
            needs="erl", deb="erlang-base", may_fail=True),
    Program("R", "Rscript --vanilla $IN/main.R", needs="Rscript", deb="r-base-core", files={"main.R": r"""
set.seed(1); x <- matrix(rnorm(90000), 300); for (i in 1:12) { y <- solve(x %*% t(x) + diag(300)) }; cat(round(sum(y), 4), "\n")
d <- data.frame(a = rnorm(30000), g = sample(letters, 30000, TRUE)); print(round(tapply(d$a, d$g, mean), 8)); print(round(coef(lm(a ~ g, d))[1:3], 6))
s <- replicate(200, paste(sample(letters, 500, TRUE), collapse = "")); cat(sum(nchar(gsub("[aeiou]", "", s))), "\n"); library(parallel); print(unlist(mclapply(1:4, function(i) sum(as.numeric(1:(i * 10000))), mc.cores = 2)))
quit(status = 5)
"""}, may_fail=True),
    Program("octave", "octave-cli --no-init-file --quiet $IN/main.m", needs="octave-cli", deb="octave", files={"main.m": r"""
rand('twister', 1); x = rand(250); for i = 1:15, y = x * x' + i * eye(250); z = y \ x; end; printf('%.6f\n', sum(z(:)));
s = repmat('abc ', 1, 20000); printf('%d\n', numel(strsplit(s, ' '))); printf('%.6f\n', max(abs(fft(x(:)))));
"""}),
    Program("java", "java -Xmx256m -XX:+UseG1GC $IN/Main.java; java -Xint -Xshare:auto -XX:+UseSerialGC $IN/Hello.java", needs="java javac", deb="openjdk-17-jdk-headless", may_fail=True, files={
        "Hello.java": 'class Hello { public static void main(String[] a) { System.out.println("hello " + java.util.stream.IntStream.range(0, 20000).filter(i -> i % 7 == 3).sum()); System.exit(4); } }\n',
        "Main.java": r"""
import java.nio.*; import java.util.*; import java.util.concurrent.*; import java.util.stream.*; import java.util.zip.*;
class Main { public static void main(String[] a) throws Exception {
  Map<String, List<Integer>> m = new TreeMap<>(); for (int i = 0; i < 200000; i++) m.computeIfAbsent("k" + (long) i * i % 997, k -> new ArrayList<>()).add(i);
  System.out.println(m.size() + " " + m.hashCode());
  ExecutorService p = Executors.newFixedThreadPool(4); List<Future<Long>> f = new ArrayList<>();
  for (int t = 0; t < 8; t++) { final int s = t; f.add(p.submit(() -> { CRC32 c = new CRC32(); for (int i = 0; i < 30; i++) { ByteBuffer b = ByteBuffer.allocateDirect(100000 + 1000 * s); while (b.remaining() > 8) b.putLong(i * s); b.flip(); c.update(b);
    Deflater d = new Deflater(); d.setInput(new byte[200000]); d.finish(); byte[] o = new byte[5000]; c.update(o, 0, d.deflate(o)); d.end(); } return c.getValue(); })); }
  for (Future<Long> x : f) System.out.println(x.get()); p.shutdown(); System.gc();
} }
"""}),
    Program("go", "$IN/pure; $IN/mixed; GOFLAGS=-mod=mod GOCACHE=$IN/cache GOPATH=$IN GO111MODULE=off go vet $IN/pure.go", needs="go gcc", deb="golang-go gcc libc6-dev", timeout=300,
            prepare="export GOCACHE=$IN/cache GOPATH=$IN GO111MODULE=off CGO_ENABLED=0; go build -o $IN/pure $IN/pure.go; CGO_ENABLED=1 go build -o $IN/mixed $IN/mixed.go; go vet $IN/pure.go",
            files={"pure.go": r"""
package main
import ("crypto/sha256"; "fmt"; "sort"; "strings"; "sync")
func main() {
	m := map[string]int{}; for i := 0; i < 200000; i++ { m[fmt.Sprint("k", i*i%9973)] += i }
	k := []string{}; for s := range m { k = append(k, s) }; sort.Strings(k); fmt.Printf("%d %x\n", len(k), sha256.Sum256([]byte(strings.Join(k, ","))))
	var w sync.WaitGroup; r := make([]int, 8); for t := range r { w.Add(1); go func(t int) { defer w.Done(); for i := 0; i < 200; i++ { b := make([]byte, 50000+t); r[t] += len(b) + int(b[i]) } }(t) }; w.Wait(); fmt.Println(r)
}
""", "mixed.go": r"""
package main
/*
#include <stdlib.h>
#include <string.h>
static unsigned work(unsigned seed) { unsigned s = seed; for (int i = 0; i < 400; i++) { unsigned char *p = malloc(40000 + i * 16); memset(p, i + seed, 40000); s = s * 31 + p[39999]; p = realloc(p, 90000); free(p); } return s; }
*/
import "C"
import ("fmt"; "net"; "os/user"; "sync")
func main() {
	var w sync.WaitGroup; r := make([]uint, 8); for t := range r { w.Add(1); go func(t int) { defer w.Done(); r[t] = uint(C.work(C.uint(t))) }(t) }; w.Wait(); fmt.Println(r)
	u, _ := user.LookupId("0"); fmt.Println(u.Username); a, _ := net.LookupHost("127.0.0.1"); fmt.Println(a)
}
"""}),
    Program("rustc", "RUSTC=$(ls -d ${RUSTUP_HOME:-/root/.rustup}/toolchains/*/bin/rustc /usr/bin/rustc 2> /dev/null | head -n 1); $RUSTC -O -o p $IN/main.rs && ./p; ! $RUSTC $IN/wrong.rs; rm -f p", needs="?rustc", deb="rustc", timeout=300,
            files={"main.rs": r"""
use std::collections::BTreeMap;
fn main() { let mut m: BTreeMap<String, Vec<u64>> = BTreeMap::new(); for i in 0..200_000u64 { m.entry(format!("k{}", i * i % 997)).or_default().push(i); }
  let t: Vec<_> = (0..4).map(|s| std::thread::spawn(move || (0..300usize).map(|i| vec![s as u8; 40_000 + i * 8].iter().map(|&b| b as u64).sum::<u64>()).sum::<u64>())).collect();
  println!("{} {:?}", m.len(), t.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()); }
""", "wrong.rs": "fn main() { let x: u32 = \"a\"; }\n"}),
    Program("clang", "clang -O2 -c $COMMON/many.c -o many.o; clang -flto=thin -O1 -c $IN/main.c -o main.o; clang -flto=thin -O1 -c $COMMON/many.c -o m2.o; clang -fuse-ld=lld -flto=thin -o p main.o m2.o; ./p || echo $?", needs="clang ld.lld", deb="clang lld", files={"main.c": MAIN_C}),
    Program("cmake ninja", "cp $IN/* .; cp $COMMON/many.c .; cmake -S . -B b -G Ninja > /dev/null; ninja -C b -j2 -d explain > /dev/null 2>&1; ./b/p || echo $?; ninja -C b -n | tail -n 1", needs="cmake ninja gcc", deb="cmake ninja-build gcc", ignore="b/*",
            files={"main.c": MAIN_C, "CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(p C)\nadd_executable(p main.c many.c)\n"}, timeout=200),
    Program("nasm", r"""for i in $(seq 3000); do echo "l$i: mov eax, $i"; echo "jmp l$((i * 7 % 3000 + 1))"; done > a.asm; nasm -f elf64 a.asm; cksum a.o; nasm -f bin -o a.bin -l a.lst a.asm; cksum a.lst""", needs="nasm", deb="nasm"),
    # What plans has a thread of its own, and so has whoever is looked at here.
    Program("gdb", r"""gdb -nx -batch -ex 'set startup-with-shell off' -ex 'break f7' -ex run -ex bt -ex 'info locals' -ex continue $IN/p 2>&1 | grep -v -e Inferior -e warning -e debuginfod -e libthread_db""", needs="gdb gcc", deb="gdb gcc", may_fail=True, normal=[(r"(?m)^\[(New|Thread) .*\n", ""), (r"(?m)^Thread \d+ \"p\" hit ", "")],
            files={"main.c": MAIN_C}, prepare="gcc -g -O0 -o $IN/p $IN/main.c $COMMON/many.c"),
    Program("strace", "strace -f -o log sort -n $COMMON/numbers | cksum; grep -c exit_group log; strace -c -o table ls /usr/share > /dev/null; head -n 1 table", needs="strace", deb="strace", ignore="log table"),
    # Servers, with a load.
    Program("postgresql", AS_NOBODY + UNTIL + r"""
B=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1); export PGHOST=$PWD PGUSER=u PGDATABASE=postgres
$as $B/initdb -D d -U u --no-sync -A trust --no-instructions > log 2>&1
$as $B/postgres -D d -F -k $PWD -c listen_addresses= -c shared_buffers=24MB -c max_parallel_workers=2 > server.log 2>&1 &
server=$!; until_ok $as $B/pg_isready -q; $as $B/pgbench -q -i -s 2 > /dev/null 2>&1
$as $B/pgbench -c 4 -j 2 -t 150 --random-seed=1 2> errors | grep -E '^(number of|scaling|transaction type)'; $as $B/pgbench -n -S -M prepared -c 2 -j 2 -t 400 2>> errors | grep 'actually processed'
cat > q.sql <<'END'
select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), count(*) from pgbench_history;
set work_mem = '4MB'; select bid, count(*), sum(aid::numeric * aid), md5(string_agg(aid::text, ',' order by aid)) from pgbench_accounts group by 1 order by 1;
select count(*) from pgbench_accounts a join pgbench_accounts b on a.aid = b.aid + 1; create index on pgbench_accounts (md5(filler || aid)); vacuum analyze;
select sum(length(x::text)) from (select jsonb_agg(jsonb_build_object('a', aid, 'f', filler)) x from pgbench_accounts where aid < 20000) s;
do $$ declare t text := ''; begin for i in 1..3000 loop t := t || md5(i::text); end loop; raise notice '%', md5(t); end $$; select nothing;
END
$as $B/psql -Xq -f q.sql 2>&1 || echo "psql $?"; $as $B/pg_dump -t pgbench_branches -s | grep -v -e '^\\' | cksum; kill -INT $server; wait $server || echo "server $?"; grep -E 'PANIC|FATAL|crash|signal' server.log | grep -vc -e 'is starting up' -e 'due to administrator command'
""", needs="?/usr/lib/postgresql/*/bin/pgbench", deb="postgresql", ignore="*", may_fail=True, timeout=240),
    Program("redis", UNTIL + r"""
redis-server --unixsocket $PWD/s --port 0 --save '' --dir $PWD --enable-debug-command yes --io-threads 2 > log & server=$!
r() { redis-cli -s s "$@"; }; until_ok r ping; redis-benchmark -s s -q -n 3000 -c 20 -P 4 -r 1000 -d 1000 -t set,lpush,lrange_100 > /dev/null; r flushall
for i in $(seq 2500); do echo "set k$i $(printf '%0*d' $((i % 700 + 1)) $i)"; echo "rpush l$((i % 50)) $i"; echo "zadd z$((i % 9)) $i m$i"; echo "hset h$((i % 99)) f$i v$i"; done | r --pipe | tail -n 1
r debug digest; r dbsize; r bgsave > /dev/null; until_ok sh -c 'redis-cli -s s info persistence | grep -q rdb_bgsave_in_progress:0'; r info persistence | grep -a last_bgsave_status; r debug reload; r debug digest
r bgrewriteaof > /dev/null; r eval 'local t = {} for i = 1, 20000 do t[i] = redis.sha1hex(i) end return #table.concat(t)' 0; r memory doctor > /dev/null; r shutdown save || true; wait $server; echo "server $?"; redis-check-rdb dump.rdb | grep -a -E 'keys read|OK'
""", needs="redis-server redis-cli redis-benchmark", deb="redis-server redis-tools", ignore="*", normal=[(r"(?m)^\[offset \d+\] ", "")], timeout=200),
    Program("nginx", UNTIL + r"""
mkdir w t; cp $COMMON/numbers $COMMON/many.c w; sed "s|@|$PWD|g; s|PORT|$PORT|g" $IN/n.conf > n.conf; nginx -p $PWD -e $PWD/err -c $PWD/n.conf & server=$!
U=http://127.0.0.1:$PORT; until_ok curl -sf $U/many.c; for f in numbers many.c; do curl -s $U/$f | cksum; curl -s --compressed $U/$f | cksum; curl -s -r 100-9999 $U/proxied/$f | cksum; done
wrk -t2 -c16 -d1s -H 'Accept-Encoding: gzip' $U/many.c > wrk.log; wrk -t2 -c8 -d1s $U/proxied/numbers >> wrk.log; grep -E 'Non-2xx|Socket' wrk.log || echo 'no errors'
curl -s -o /dev/null -w '%{http_code}\n' $U/none; curl -s --data-binary @$COMMON/bytes -o /dev/null -w '%{http_code}\n' $U/many.c; nginx -p $PWD -e $PWD/err -c $PWD/n.conf -s reload; sleep 0.2; curl -s $U/many.c | cksum
kill -QUIT $server; wait $server; echo "server $?"; grep -cE 'alert|emerg|signal [0-9]+ \(core' err || true
""", needs="nginx wrk curl", deb="nginx-light wrk curl", ignore="*", normal=[(r"(?m)^nginx: .*\n", "")], files={"n.conf": r"""
daemon off; worker_processes 2; pid @/pid; error_log @/err notice; user root;
events { worker_connections 256; }
http { access_log off; client_body_temp_path @/t/b; proxy_temp_path @/t/p; fastcgi_temp_path @/t/f; uwsgi_temp_path @/t/u; scgi_temp_path @/t/s; types { text/plain c; } default_type text/plain; gzip on; gzip_types text/plain; gzip_comp_level 4; client_max_body_size 9m;
  proxy_cache_path @/t/c keys_zone=z:1m;
  server { listen 127.0.0.1:PORT; root @/w; location /proxied/ { proxy_cache z; proxy_cache_valid 200 10s; proxy_pass http://127.0.0.1:PORT/; proxy_buffers 8 64k; proxy_buffer_size 64k; proxy_busy_buffers_size 128k; } } }
"""}, root=True),
    Program("memcached", UNTIL + r"""
U=; [ "$(id -u)" != 0 ] || U='-u root'; memcached $U -s $PWD/s -a 0777 -m 300 -t 4 -I 2m & server=$!; until_ok test -S s; /usr/bin/python3 $IN/client.py; kill -TERM $server; wait $server || echo "server $?"
""", needs="memcached /usr/bin/python3", deb="memcached python3", ignore="*", normal=[(r"(?m)^Signal handled.*\n", "")], may_fail=True, files={"client.py": r"""
import socket, threading, zlib
def client(n, out):
    s = socket.socket(socket.AF_UNIX); s.connect("s"); f = s.makefile("rwb"); c = 0
    for i in range(600):
        v = bytes([i % 251]) * (i * 97 % 90000 + n)
        f.write(b"set k%d.%d 0 0 %d\r\n%s\r\n" % (n, i, len(v), v)); f.flush(); assert f.readline() == b"STORED\r\n"
        f.write(b"get k%d.%d\r\n" % (n, i)); f.flush(); head = f.readline(); body = f.read(len(v) + 2); assert body == v + b"\r\n", head; f.readline(); c = zlib.crc32(body, c)
    f.write(b"set big 0 0 400000\r\n" + b"x" * 400000 + b"\r\n"); f.flush(); out[n] = (c, f.readline())
out = {}; t = [threading.Thread(target=client, args=(n, out)) for n in range(4)]; [x.start() for x in t]; [x.join() for x in t]; print(sorted(out.items()))
"""}),
    Program("mariadb", AS_NOBODY + UNTIL + r"""
cp -r $IN/d d; [ "$(id -u)" != 0 ] || chown -R 65534:65534 d
$as mariadbd --no-defaults --datadir=$PWD/d --socket=$PWD/s --skip-networking --innodb-buffer-pool-size=16M --innodb-flush-log-at-trx-commit=0 --skip-grant-tables --pid-file=$PWD/pid --tmpdir=$PWD > log 2>&1 & server=$!
m() { mariadb --no-defaults -S s -N "$@"; }; until_ok m -e 'select 1'; m -e 'create database x'; m x < $IN/q.sql; (for i in 1 2 3; do m x -e 'select count(*), sum(length(b.c)) from t a join t b using (a)' & done; wait); m x -e 'select nothing' 2>&1 || true
mariadb-dump --no-defaults -S s --skip-comments --compact x | cksum; mariadb-admin --no-defaults -S s shutdown; wait $server; echo "server $?"; grep -ciE 'got signal|assert' log || true
""", needs="mariadbd mariadb mariadb-install-db mariadb-dump", deb="mariadb-server", ignore="*", timeout=200,
            prepare="mariadb-install-db --no-defaults --datadir=$IN/d --auth-root-authentication-method=normal --skip-test-db --user=$(id -un) > /dev/null 2>&1",
            files={"q.sql": "create table t (a int primary key, b int, c text, key(b));\nset @@cte_max_recursion_depth=100000;\n".replace("set @@cte_max_recursion_depth=100000;\n", "set max_recursive_iterations=100000;\n") +
                   "insert into t with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000) select i, i * 7919 % 1000, repeat(md5(i), 1 + i % 9) from n;\n"
                   "select b % 10, count(*), sum(a), md5(group_concat(c order by a limit 50)) from t group by 1 order by 1;\nupdate t set c = concat(c, c) where b < 300;\n"
                   "alter table t engine=Aria; alter table t engine=InnoDB; select count(*), sum(length(c)) from t; select c from t order by c desc, a limit 3;\n"}),
    Program("apache", UNTIL + r"""
mkdir w; cp $COMMON/numbers $COMMON/many.c w; sed "s|@|$PWD|g; s|PORT|$PORT|" $IN/a.conf > a.conf; apache2 -D FOREGROUND -d $PWD -f $PWD/a.conf & server=$!
U=http://127.0.0.1:$PORT; until_ok curl -sf $U/many.c; curl -s --compressed $U/numbers | cksum; ab -q -n 600 -c 8 $U/many.c 2>&1 | grep -E '^(Complete|Failed|Non-2xx)'; curl -s $U/ | cksum; kill -TERM $server; wait $server; echo "server $?"; grep -c 'exit signal' err || true
""", needs="apache2 ab curl", deb="apache2-bin apache2-utils curl", ignore="*", may_fail=True, normal=[(r"(?m)^AH\d+: .*\n", "")], files={"a.conf": r"""
ServerName x
Listen 127.0.0.1:PORT
PidFile @/pid
ErrorLog @/err
DocumentRoot @/w
""" + "".join(f"LoadModule {m}_module /usr/lib/apache2/modules/mod_{m}.so\n" for m in ("mpm_event", "authz_core", "dir", "autoindex", "deflate", "filter", "mime")) + r"""
TypesConfig /dev/null
AddType text/plain .c
AddOutputFilterByType DEFLATE text/plain
IndexOptions -FancyIndexing
"""}),
    Program("varnish", UNTIL + r"""
mkdir w n; chmod 777 n; cp $COMMON/numbers $COMMON/many.c w; (cd w; exec /usr/bin/python3 -m http.server --bind 127.0.0.1 $PORT2 > /dev/null 2>&1) & origin=$!
varnishd -j none -F -n $PWD/n -a 127.0.0.1:$PORT -b 127.0.0.1:$PORT2 -s malloc,20m > log 2>&1 & server=$!
U=http://127.0.0.1:$PORT; until_ok curl -sf $U/many.c; for i in 1 2 3; do curl -s $U/numbers | cksum; done; curl -s -o /dev/null -w '%{http_code}\n' $U/none; for i in $(seq 40); do curl -s "$U/many.c?$i" | cksum; done | sort | uniq -c
kill -TERM $server; wait $server; echo "server $?"; kill $origin; grep -ci panic log || true
""", needs="varnishd gcc curl /usr/bin/python3", deb="varnish gcc libc6-dev curl", ignore="*", may_fail=True),
    Program("haproxy", UNTIL + r"""
mkdir w; cp $COMMON/many.c w; (cd w; exec /usr/bin/python3 -m http.server --bind 127.0.0.1 $PORT2 > /dev/null 2>&1) & origin=$!
printf 'global\n nbthread 2\ndefaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\nlisten x\n bind 127.0.0.1:%s\n compression algo gzip\n server a 127.0.0.1:%s\n' $PORT $PORT2 > h.cfg
haproxy -q -db -f h.cfg & server=$!; U=http://127.0.0.1:$PORT; until_ok curl -sf $U/many.c; for i in $(seq 30); do curl -s --compressed "$U/many.c?$i" | cksum; done | sort | uniq -c; kill -USR1 $server; wait $server || echo "server $?"; kill $origin
""", needs="haproxy curl /usr/bin/python3", deb="haproxy curl python3", ignore="*", may_fail=True),
    # Media, text, tools.
    # Of slower presets than this one, x264's output depends on what freed memory holds (GLIBC_TUNABLES=glibc.malloc.perturb=90 shows it).
    Program("ffmpeg", r"""
F="ffmpeg -nostdin -hide_banner -loglevel error -threads 2"; $F -f lavfi -i testsrc=size=320x240:rate=25:duration=2 -f lavfi -i sine=frequency=440:duration=2 -c:v libx264 -preset ultrafast -c:a aac -fflags +bitexact -flags +bitexact o.mkv
$F -i o.mkv -f framemd5 - | tail -n 3; $F -i o.mkv -vf scale=160:120,hflip,boxblur -c:v mpeg4 -c:a flac -fflags +bitexact -flags +bitexact p.mkv; $F -i p.mkv -map 0:a -f md5 -; ffprobe -v error -show_entries stream=codec_name,nb_read_frames -count_frames p.mkv; $F -i $COMMON/numbers o.wav
""", needs="ffmpeg", deb="ffmpeg", may_fail=True, normal=[(r" @ 0x\w*", "")]),
    Program("imagemagick", r"""
C=$(ls /usr/bin/convert-im6* /usr/bin/magick /usr/bin/convert 2> /dev/null | head -n 1); $C -seed 1 -size 500x400 plasma:red-blue p.ppm; cksum p.ppm
$C p.ppm -resize 70% -blur 0x3 -rotate 17 -colorspace HSL -separate -combine q.ppm; cksum q.ppm; $C p.ppm -quality 80 -strip j.jpg; $C j.jpg -format '%w %h %#\n' info:; for i in 1 2 3 4 5 6; do $C p.ppm -crop 200x200+$i+$i +repage -sharpen 0x1 rgb:- | cksum; done; $C $COMMON/numbers x.png
""", needs="?/usr/bin/convert-im6*", deb="imagemagick", may_fail=True),
    Program("ghostscript", r"""gs -q -dNOPAUSE -dBATCH -sDEVICE=pdfwrite -sOutputFile=o.pdf $IN/d.ps; gs -q -dNOPAUSE -dBATCH -sDEVICE=ppmraw -r60 -sOutputFile=p%d.ppm $IN/d.ps; cksum p*.ppm; pdftotext o.pdf - | cksum; pdftoppm -r 50 o.pdf q; cksum q*""", needs="gs pdftoppm", deb="ghostscript poppler-utils", ignore="o.pdf",
            files={"d.ps": "%!PS\n/Helvetica findfont 12 scalefont setfont\n1 1 4 { pop 0 1 200 { dup 37 mul 500 mod exch dup 53 mul 700 mod 3 -1 roll exch moveto (word ) show 20 string cvs show } for showpage } for\n"}),
    Program("graphviz", r"""{ echo 'digraph g {'; for i in $(seq 150); do echo "n$i -> n$((i * 7 % 150)); n$i -> n$((i * i % 150));"; done; echo '}'; } > g.dot; dot -Tplain g.dot | cksum; dot -Tsvg g.dot | wc -l; neato -Tplain -Gstart=1 g.dot | wc -l""", needs="dot", deb="graphviz"),
    Program("gnuplot", r"""gnuplot -e 'set term svg; set output "o.svg"; set samples 3000; splot sin(x)*cos(y); set output; set term dumb; plot sin(x)/x'; cksum o.svg""", needs="gnuplot", deb="gnuplot-nox"),
    Program("sox", r"""sox -R -n -r 16000 a.wav synth 4 sine 300-3000 tremolo 5; sox -R a.wav b.wav rate 44100 reverb echo 0.8 0.9 100 0.3; sox b.wav -n stat 2>&1 | head -n 5; cksum *.wav""", needs="sox", deb="sox"),
    Program("optipng", r"""/usr/bin/python3 $IN/p.py; optipng -quiet -o3 p.png -out q.png; cksum q.png""", needs="optipng /usr/bin/python3", deb="optipng", files={"p.py": r"""
import struct, zlib
w = h = 300; raw = b"".join(b"\0" + bytes((x * y * 7 // 30 + c * 50) % 256 for x in range(w) for c in range(3)) for y in range(h))
def chunk(k, d): return struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d))
open("p.png", "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(raw, 1)) + chunk(b"IEND", b""))
"""}),
    Program("emacs", r"""emacs -Q --batch $COMMON/many.c --eval '(progn (c-mode) (indent-region (point-min) (point-max)) (replace-regexp-in-string "a" "b" (buffer-string)) (write-region (point-min) (point-max) "out.c") (message "%s %d" (md5 (buffer-string)) (buffer-size)) (dotimes (i 60) (with-temp-buffer (insert (make-string 90000 ?x)) (sort-lines nil 1 2))))' 2>&1 | tail -n 1""", needs="emacs", deb="emacs-nox"),
    Program("vim", r"""vim -Nu NONE -i NONE -n -es -c '%s/7/seven/g' -c '%sort n' -c 'g/00/d' -c 'w! out' -c 'qa!' $COMMON/numbers; cksum out""", needs="vim", deb="vim-tiny", may_fail=True),
    Program("jq", r"""/usr/bin/python3 -c 'import json; print(json.dumps([dict(a=i, b=[i] * 9, c=str(i * i)) for i in range(3000)]))' > x; jq 'map(select(.a % 3 == 0)) | group_by(.a % 7) | map({n: length, s: (map(.b | add) | add)})' x; jq -c '.[] | .c' x | cksum; jq . $COMMON/numbers | tail -n 1; jq '.[' x""", needs="jq /usr/bin/python3", deb="jq", may_fail=True, quick=True),
    Program("curl", UNTIL + r"(cd $COMMON; exec /usr/bin/python3 -m http.server --bind 127.0.0.1 $PORT > /dev/null 2>&1) & server=$!; U=http://127.0.0.1:$PORT; until_ok curl -sf $U/many.c; curl -s -Z $U/numbers -o a $U/bytes -o b $U/many.c -o c 2> /dev/null; cksum a b c; curl -s file://$COMMON/bytes | cksum; curl -sS $U/none -f 2>&1 || echo $?; kill $server", needs="curl /usr/bin/python3", deb="curl python3", normal=[(r"127\.0\.0\.1:\d+", "")]),
    Program("rsync", r"""rsync -a --checksum $COMMON/ d/; sed -i 5d d/numbers; rsync -a --no-whole-file --inplace -c --stats $COMMON/ d/ | grep -E '^(Number of (created|reg)|Literal|Matched)'; diff -r $COMMON d""", needs="rsync", deb="rsync"),
    Program("7z lz4 brotli", r"""7z a -bd -mx=5 -mmt=2 a.7z $COMMON/numbers $COMMON/bytes > /dev/null; 7z x -bd -so a.7z | cksum; lz4 -9qc $COMMON/numbers | lz4 -dqc | cksum; brotli -q 7 -c $COMMON/numbers | brotli -dc | cksum""", needs="7z lz4 brotli", deb="p7zip-full lz4 brotli", ignore="a.7z"),
    Program("gawk mawk", r"""for a in gawk mawk; do $a '{ s[$2] = s[$2] $1; n[$1 % 9973]++ } END { for (k in s) t += length(s[k]); for (k in n) u += n[k]; print t, u; x = "    "; while (length(x) < 90000) x = x x; gsub(/ /, "ab", x); print length(x) }' $COMMON/numbers; done; gawk 'BEGIN { PROCINFO["sorted_in"] = "@ind_num_asc"; for (i = 0; i < 5000; i++) a[i * i % 997]++; for (k in a) s = s k; print length(s); exit 3 }' || echo $?""", needs="gawk mawk", deb="gawk mawk"),
    Program("parallel", r"""seq 24 | parallel -j2 -k 'echo {} $(({} * {}))'; seq 3 | parallel --halt now,fail=1 -j1 'test {} != 2' 2> /dev/null; echo $?""", needs="parallel", deb="parallel", env={"PARALLEL_HOME": "/tmp"}),
    Program("stress-ng", r"""stress-ng --malloc 2 --malloc-ops 6000 --malloc-bytes 32M --mmap 1 --mmap-ops 3 --mmap-bytes 16M --qsort 1 --qsort-ops 1 --verify --quiet; echo $?; stress-ng --fork 1 --fork-ops 100 --pthread 1 --pthread-ops 60 --bsearch 1 --bsearch-ops 3 --verify --quiet""", needs="stress-ng", deb="stress-ng", env={"HOME": "/tmp"}),
    Program("hwloc", r"""lstopo-no-graphics --of console | cksum; hwloc-calc --number-of pu all; hwloc-bind pu:0 -- hwloc-ls --only pu""", needs="hwloc-calc lstopo-no-graphics", deb="hwloc-nox"),
    Program("chromium", r"""
chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --user-data-dir=$PWD/p --virtual-time-budget=3000 --dump-dom file://$IN/x.html 2> err; grep -ciE 'segv|received signal|check failed' err || true
""", needs="chromium", deb="chromium", ignore="*", may_fail=True, timeout=120, files={"x.html": r"""<!doctype html><canvas id=c width=300 height=200></canvas><p id=o></p><script>
let s = 0, k = new Map(); for (let i = 0; i < 60000; i++) { k.set('k' + i * i % 997, 'x'.repeat(i % 90)); } for (const v of k.values()) s += v.length;
const g = c.getContext('2d'); for (let i = 0; i < 200; i++) { g.fillStyle = `hsl(${i},50%,50%)`; g.fillRect(i, i % 50, 40, 40); } const d = g.getImageData(0, 0, 300, 200).data; let t = 0; for (const v of d) t = (t * 31 + v) >>> 0;
const w = new Worker(URL.createObjectURL(new Blob(['let n = 0; for (let i = 0; i < 200; i++) n += new Float64Array(20000).fill(i)[7]; postMessage(n)']))); w.onmessage = e => { o.textContent = `${s} ${t} ${e.data} ${new Intl.NumberFormat('de').format(12345.678)}`; };
</script>"""}),
    # PyPI.
    Program("numpy suite", "$PY -m pytest -q -p no:cacheprovider -p no:randomly --pyargs numpy._core.tests.test_multiarray numpy._core.tests.test_shape_base -k 'resize or Resize or Buffer or Copy or partition or block'", pip="numpy pytest hypothesis", needs="?gcc", may_fail=True, timeout=300, normal=PYTEST),
    Program("scipy suite", "$PY -m pytest -q -p no:cacheprovider -p no:randomly --pyargs scipy.linalg.tests.test_decomp_cholesky scipy.sparse.tests.test_csc scipy.fft.tests.test_fftlog -k 'not slow'", pip="scipy numpy pytest hypothesis", may_fail=True, timeout=300, normal=PYTEST),
    python("numpy", "numpy", r"""
import numpy as np, threading
r = np.random.default_rng(1); w = [r.standard_normal((300, 300)) for _ in range(4)]
for step in range(25):
    x = r.standard_normal((256, 300))
    for m in w: x = np.tanh(x @ m / 17)
    g = x.T @ x; s = np.linalg.svd(g[:60, :60])[1]; f = np.fft.rfft(x, axis=0)
print(round(float(np.abs(x).sum()), 4), round(float(s[0]), 5), round(float(np.abs(f).sum()), 3), np.sort(x.ravel())[[0, -1]].round(9))
out = {}
def part(i): a = np.arange(100000 + i, dtype=float); out[i] = [round(float((a * k).cumsum()[-1]), 1) for k in range(30)]
t = [threading.Thread(target=part, args=(i,)) for i in range(4)]; [x.start() for x in t]; [x.join() for x in t]; print(sorted(out.items())[2][1][-3:])
a = np.zeros(10**6); a.resize(2 * 10**6, refcheck=False); print(a.sum(), np.array_repr(np.unique(r.integers(0, 50, 9999)))[:60])
"""),
    python("pandas", "pandas numpy", r"""
import io, numpy as np, pandas as pd
r = np.random.default_rng(2); d = pd.DataFrame({"k": r.integers(0, 500, 60000), "v": r.standard_normal(60000), "s": [f"name{i % 777}" for i in range(60000)]})
for step in range(8):
    g = d.groupby(["k"]).agg({"v": ["mean", "std"], "s": "nunique"}); m = d.merge(d.drop_duplicates("k"), on="k"); p = d.pivot_table(index="k", columns=d.v > 0, values="v", aggfunc="count")
print(g.round(6).tail(3)); print(len(m), p.sum().tolist()); print(pd.read_csv(io.StringIO(d.to_csv(index=False))).describe().round(6)); print(d.s.str.replace("name", "n").value_counts().head(3)); print(d.sort_values("v").rolling(50).v.mean().iloc[-1].round(9))
"""),
    python("polars", "polars", r"""
import polars as pl
d = pl.DataFrame({"i": range(200000)}).with_columns(k=pl.col("i") * 7919 % 997, v=(pl.col("i") * 31 % 1009).cast(pl.Float64), s=pl.col("i").cast(pl.String))
for step in range(10): g = d.lazy().group_by("k").agg(pl.col("v").sum(), pl.col("s").n_unique()).sort("k").collect(); j = d.join(g, on="k").sort("i")
print(g.head(3), j.shape, j["v_right"].sum(), d.write_csv()[-20:], d.with_columns(pl.col("s").str.replace("1", "x"))["s"].n_unique())
d.write_parquet("x.parquet"); print(pl.scan_parquet("x.parquet").filter(pl.col("k") < 9).select(pl.len()).collect().item())
""", ignore="x.parquet"),
    python("duckdb", "duckdb", r"""
import duckdb
c = duckdb.connect("x.db"); c.execute("set threads = 2; set memory_limit = '300MB'"); c.execute("create table t as select i, i * 7919 % 997 k, md5(i::varchar) s from range(300000) r(i)")
for step in range(5): print(c.execute("select k % 5, count(*), sum(i), count(distinct s[:2]), max(s) from t group by 1 order by 1").fetchall())
print(c.execute("select count(*), sum(a.i) from t a join t b on a.s = b.s").fetchall(), c.execute("select s from t order by s desc, i limit 3").fetchall()); c.execute("copy t to 'x.parquet'"); print(c.execute("select count(*), sum(k) from 'x.parquet'").fetchall())
""", ignore="*"),
    python("pyarrow", "pyarrow", r"""
import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
t = pa.table({"a": list(range(200000)), "s": [str(i * i % 997) for i in range(200000)]})
for name in ("default", "system", "jemalloc", "mimalloc"):
    try: pool = pa.default_memory_pool() if name == "default" else getattr(pa, name + "_memory_pool")()
    except (AttributeError, NotImplementedError) as error: print(name, type(error).__name__); continue
    pa.set_memory_pool(pool)
    for i in range(5): g = t.group_by("s").aggregate([("a", "sum"), ("a", "count")]).sort_by("s"); c = pc.sort_indices(t, sort_keys=[("s", "ascending"), ("a", "descending")], memory_pool=pool)
    pq.write_table(t, "x.parquet", compression="zstd"); print(name, g.slice(0, 2).to_pydict(), c[0].as_py(), pq.read_table("x.parquet").num_rows)
""", ignore="*"),
    python("scikit-learn", "sklearn=scikit-learn numpy", r"""
import numpy as np, warnings
from sklearn.datasets import make_classification, load_digits
from sklearn.ensemble import RandomForestClassifier, HistGradientBoostingClassifier
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC
x, y = load_digits(return_X_y=True)
print(RandomForestClassifier(15, random_state=0, n_jobs=2).fit(x, y).score(x[::3], y[::3]), HistGradientBoostingClassifier(max_iter=3, random_state=0).fit(x[:500], y[:500]).score(x[700:], y[700:]).__round__(3))
print(round(KMeans(10, n_init=2, random_state=0).fit(x).inertia_, 1), np.abs(PCA(5).fit_transform(x)).sum().round(2), LogisticRegression(max_iter=60, tol=1e-2).fit(x / 16, y).score(x / 16, y).__round__(2), SVC().fit(x[:900], y[:900]).score(x[900:], y[900:]).__round__(3))
print(cross_val_score(RandomForestClassifier(8, random_state=1), x, y, n_jobs=2).round(4))
"""),
    python("lightgbm", "lightgbm numpy", r"""
import lightgbm, numpy as np
r = np.random.default_rng(0); x = r.standard_normal((8000, 20)); y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(int)
b = lightgbm.train(dict(objective="binary", verbose=-1, num_threads=2, seed=1, deterministic=True, force_row_wise=True), lightgbm.Dataset(x, y), 20); p = b.predict(x); print(((p > 0.5) == y).mean(), p[:5].round(6), b.feature_importance()[:5])
b.save_model("m.txt"); print(np.abs(lightgbm.Booster(model_file="m.txt").predict(x) - p).max() < 1e-12)
"""),
    python("xgboost", "xgboost numpy", r"""
import numpy as np, xgboost
r = np.random.default_rng(0); x = r.standard_normal((8000, 20)).astype(np.float32); y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(int)
d = xgboost.DMatrix(x, y); b = xgboost.train(dict(objective="binary:logistic", nthread=2, max_depth=5, seed=1, tree_method="hist"), d, 20); p = b.predict(d); print(((p > 0.5) == y).mean(), p[:5].round(4)); b.save_model("m.json"); print(len(b.get_dump()))
""", ignore="m.json"),
    # Engines.
    torch("training", r"""
import torch
torch.manual_seed(0); torch.set_num_threads(2)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(512, 10)); o = torch.optim.Adam(net.parameters(), 1e-3)
x = torch.randn(16, 3, 32, 32); y = torch.arange(16) % 10
for step in range(25): o.zero_grad(); l = torch.nn.functional.cross_entropy(net(x), y); l.backward(); o.step()
print(round(l.item(), 3)); torch.save(net.state_dict(), "n.pt"); print(len(torch.load("n.pt")))
"""),
    *[torch(f"loader by {way}", f"""
import torch, torch.utils.data as D
class Set(D.Dataset):
    def __len__(self): return 240
    def __getitem__(self, i): return torch.full((3, 64, 64), float(i)), i
if __name__ == "__main__":
    torch.set_num_threads(2); torch.manual_seed(0)
    loader = D.DataLoader(Set(), 16, shuffle=True, num_workers=2, multiprocessing_context="{way}", persistent_workers=True, generator=torch.Generator().manual_seed(3)); net = torch.nn.Conv2d(3, 8, 3)
    for epoch in range(3): print(sum(round(net(x).sum().item(), 0) * 0 + i.sum().item() * x.mean().item() for x, i in loader))
""") for way in ("fork", "spawn")],
    torch("compile", r"""
import torch
torch.manual_seed(0); torch.set_num_threads(2); net = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.GELU(), torch.nn.Linear(300, 10)).eval(); f = torch.compile(net); x = torch.randn(64, 200)
with torch.no_grad():
    for step in range(60): y = f(x)
    print(round((y - net(x)).abs().max().item(), 3), round(y.abs().sum().item(), 1))
""", needs="g++", deb="g++", timeout=600),
    torch("inference in threads", r"""
import threading, torch
torch.manual_seed(0); torch.set_num_threads(1); net = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval(); x = torch.randn(8, 32, 64); out = {}
def serve(i):
    with torch.inference_mode():
        for k in range(40): y = net(x[i % 8:, : 16 + (k * i) % 17])
        out[i] = round(net(x).abs().mean().item(), 4)
t = [threading.Thread(target=serve, args=(i,)) for i in range(6)]; [a.start() for a in t]; [a.join() for a in t]; print(sorted(out.items()))
"""),
    # Workers whose batches are page-locked, and each step a block of the heap that the driver locks, reads at its leisure, and unlocks.
    torch("on a GPU", r"""
import numpy, torch, torch.utils.data as D
class Set(D.Dataset):
    def __len__(self): return 1280
    def __getitem__(self, i): return torch.full((3, 32, 32), i / 1280), i % 10
if __name__ == "__main__":
    torch.manual_seed(0); torch.use_deterministic_algorithms(True); driver = torch.cuda.cudart()
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(6272, 10)).cuda(); o = torch.optim.Adam(net.parameters(), 1e-3)
    for step, (x, y) in enumerate(D.DataLoader(Set(), 32, num_workers=2, pin_memory=True)):
        host = numpy.full(8 << 20, step, numpy.uint8); assert int(driver.cudaHostRegister(host.ctypes.data, host.nbytes, 0)) == 0
        there = torch.from_numpy(host).cuda(non_blocking=True); x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        o.zero_grad(); l = torch.nn.functional.cross_entropy(net(x), y); l.backward(); o.step()
        assert bool((there.cpu() == step).all()); torch.cuda.synchronize(); assert int(driver.cudaHostUnregister(host.ctypes.data)) == 0
    print(step, l.item())
""", needs="/dev/nvidia0", env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
    python("jax", "jax=jax[cpu]", r"""
import jax, jax.numpy as np
def loss(w, x, y): return ((np.tanh(x @ w[0]) @ w[1] - y) ** 2).mean()
k = jax.random.split(jax.random.PRNGKey(0), 4); w = [jax.random.normal(k[0], (100, 200)) * 0.1, jax.random.normal(k[1], (200, 1)) * 0.1]; x, y = jax.random.normal(k[2], (256, 100)), jax.random.normal(k[3], (256, 1)); step = jax.jit(jax.value_and_grad(loss))
for i in range(80): l, g = step(w, x, y); w = [a - 0.1 * b for a, b in zip(w, g)]
print(round(float(l), 4), jax.vmap(lambda v: v.sum())(np.ones((5, 7))).tolist())
""", group="engines"),
    python("tensorflow", "tensorflow=tensorflow-cpu", r"""
import os; os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
import tensorflow as tf
tf.random.set_seed(0); tf.config.threading.set_intra_op_parallelism_threads(2); w = tf.Variable(tf.random.stateless_normal((64, 128), (1, 2)) * 0.1); v = tf.Variable(tf.random.stateless_normal((128, 1), (3, 4)) * 0.1); x = tf.random.stateless_normal((256, 64), (5, 6)); y = tf.random.stateless_normal((256, 1), (7, 8))
@tf.function
def step():
    with tf.GradientTape() as t: l = tf.reduce_mean((tf.tanh(x @ w) @ v - y) ** 2)
    for p, g in zip((w, v), t.gradient(l, (w, v))): p.assign_sub(0.1 * g)
    return l
for i in range(80): l = step()
print(round(float(l), 4), [int(e.sum()) for e in tf.data.Dataset.range(4000).shuffle(100, seed=1).batch(500).map(lambda e: e * 2, num_parallel_calls=2).as_numpy_iterator()][-1] > 0)
""", group="engines", timeout=400, ignore="*", normal=[(r"(?m)^(WARNING: All log messages|[IWE]\d{4} |\d{4}-\d\d-\d\d |To enable the following).*\n", "")]),
    python("onnxruntime", "onnxruntime onnx numpy", r"""
import numpy as np, onnx, onnxruntime, threading
from onnx import helper as h, TensorProto as T, numpy_helper as nh
r = np.random.default_rng(0); ws = [nh.from_array((r.standard_normal(s) * 0.1).astype(np.float32), f"w{i}") for i, s in enumerate([(16, 3, 3, 3), (32, 16, 3, 3), (32, 10)])]
g = h.make_graph([h.make_node("Conv", ["x", "w0"], ["a"]), h.make_node("Relu", ["a"], ["b"]), h.make_node("Conv", ["b", "w1"], ["c"]), h.make_node("GlobalAveragePool", ["c"], ["d"]), h.make_node("Flatten", ["d"], ["e"]), h.make_node("MatMul", ["e", "w2"], ["y"])], "g", [h.make_tensor_value_info("x", T.FLOAT, ["n", 3, 48, 48])], [h.make_tensor_value_info("y", T.FLOAT, ["n", 10])], ws)
m = h.make_model(g, opset_imports=[h.make_opsetid("", 17)], ir_version=8); o = onnxruntime.SessionOptions(); o.intra_op_num_threads = 2; out = {}
for arena in (True, False):
    o.enable_cpu_mem_arena = arena; s = onnxruntime.InferenceSession(m.SerializeToString(), o, providers=["CPUExecutionProvider"]); x = r.standard_normal((8, 3, 48, 48)).astype(np.float32) * 0 + 1
    def serve(i):
        for k in range(20): y = s.run(None, {"x": x[: 1 + (k + i) % 8]})[0]
        out[i] = y[0, :3].round(4).tolist()
    t = [threading.Thread(target=serve, args=(i,)) for i in range(3)]; [a.start() for a in t]; [a.join() for a in t]; print(sorted(out.items()))
""", group="engines", ignore="*"),
    python("openvino", "openvino numpy", r"""
import numpy as np, openvino as ov
from openvino import opset13 as op
r = np.random.default_rng(0); x = op.parameter([-1, 3, 40, 40], np.float32, name="x"); n = x
for i, (a, b) in enumerate(((3, 16), (16, 24), (24, 24))): n = op.relu(op.convolution(n, op.constant((r.standard_normal((b, a, 3, 3)) * 0.1).astype(np.float32)), [1, 1], [0, 0], [0, 0], [1, 1]))
n = op.matmul(op.reduce_mean(n, op.constant(np.array([2, 3])), False), op.constant((r.standard_normal((24, 10)) * 0.1).astype(np.float32)), False, False); m = ov.Model([n], [x], "m"); core = ov.Core(); out = {}
for hint in ("LATENCY", "THROUGHPUT"):
    c = core.compile_model(m, "CPU", {"PERFORMANCE_HINT": hint, "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2}); q = ov.AsyncInferQueue(c, 3); q.set_callback(lambda request, i: out.__setitem__(i, request.get_output_tensor().data[0, :3].round(4).tolist()))
    for i in range(60): q.start_async({0: np.ones((1 + i % 4, 3, 40, 40), np.float32)}, i)
    q.wait_all(); print(hint, out[0] == out[59], out[0])
""", group="engines", ignore="*"),
]


# ---- What is there.

def new_python():
    """A CPython of 3.12 or later, or None."""
    home = pathlib.Path(os.environ.get("PYENV_ROOT", "/root/.pyenv"))
    found = [*pathlib.Path("/usr/bin").glob("python3.1[2-9]"), *pathlib.Path("/usr/local/bin").glob("python3.1[2-9]"),
             *home.glob("versions/3.1[2-9].*/bin/python3")]
    return next((str(path) for path in sorted(found)), None)


def present(need):
    """Whether a command or a file is there; `?` before a pattern of files, or a command of any place."""
    if need.startswith("?/"):
        return any(pathlib.Path("/").glob(need[2:]))
    if need == "?rustc":
        home = pathlib.Path(os.environ.get("RUSTUP_HOME", "/root/.rustup"))
        return any(home.glob("toolchains/*/bin/rustc")) or os.path.exists("/usr/bin/rustc")
    if need == "?python3.12":
        return bool(new_python())
    need = need.lstrip("?")
    return os.path.exists(need) if "/" in need else shutil.which(need, path=PATH) is not None


def modules_of(python):
    """A function that says whether this interpreter has a module, without loading it."""
    answers = {}

    def has(module):
        if module not in answers:
            code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
            answers[module] = subprocess.run([python, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, cwd="/").returncode == 0
        return answers[module]
    return has


class Interpreters:
    """Those in which packages of PyPI are looked for."""

    def __init__(self, folders):
        paths = [str(pathlib.Path(folder).absolute() / "bin" / "python3") for folder in folders]
        paths += [str(path) for path in sorted(VENVS.glob("*/bin/python3"))] + ["/usr/bin/python3", sys.executable]
        self.known = {path: modules_of(path) for path in paths if os.path.exists(path)}

    def with_all(self, modules):
        return next((path for path, has in self.known.items() if all(has(module) for module in modules)), None)


def missing(program, interpreters):
    """Why it cannot run here, or None."""
    if program.root and os.geteuid() != 0:
        return "only root can"
    lacking = [need for need in program.needs if not present(need)]
    if lacking:
        return f"no {' '.join(need.lstrip('?') for need in lacking)}" + (f" (Debian: {' '.join(program.deb)})" if program.deb else "")
    if program.pip and not interpreters.with_all([module for module, _, _ in program.pip]):
        return f"no python3 has {' '.join(module for module, _, _ in program.pip)} together (PyPI: {' '.join(package or module for module, _, package in program.pip)}; --venv)"
    return None


def install(programs, interpreters):
    """Brings what is missing; returns what went wrong, by name of program."""
    faults, tried = {}, {}
    lacking = [program for program in programs if any(not present(need) for need in program.needs)]
    if any(program.deb for program in lacking):
        if os.geteuid() != 0:
            return {program.name: "only root can apt-get install" for program in lacking if program.deb}
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=600"]
        subprocess.run([*apt, "update"], env=environment, stdout=subprocess.DEVNULL)
        for program in lacking:
            if not program.deb:
                continue
            print("installing", *program.deb, flush=True)
            done = subprocess.run([*apt, "install", "-y", "--no-install-recommends", *program.deb], env=environment, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True)
            if done.returncode:
                faults[program.name] = f"apt-get install {' '.join(program.deb)}: {last_line(done.stderr)}"
    for program in programs:
        if not program.pip or interpreters.with_all([module for module, _, _ in program.pip]):
            continue
        venv, packages = VENVS / program.group, tuple(package or module for module, _, package in program.pip)
        if packages not in tried:
            print("installing", *packages, "in", venv, flush=True)
            commands = [] if (venv / "bin/python3").exists() else [["/usr/bin/python3", "-m", "venv", str(venv)]]
            tried[packages] = None
            for command in [*commands, [str(venv / "bin/pip"), "install", "-q", *packages]]:
                try:
                    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
                    fault = last_line(done.stderr + done.stdout) if done.returncode else None
                except OSError as error:
                    fault = str(error)
                if fault:
                    tried[packages] = f"{' '.join(command[-3:])}: {fault}"
                    break
        if tried[packages]:
            faults[program.name] = tried[packages]
    return faults


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


# ---- Running.

class Stopped(Exception):
    """The script is about to end."""


class Outcome:
    """What a run has left behind."""

    def __init__(self, program, status, out, err, files, seconds, planned):
        self.status, self.seconds, self.planned, self.files = status, seconds, planned, files
        self.out, self.err = rewritten(program, out), rewritten(program, err)

    def key(self):
        return self.status, self.out, self.err, tuple(sorted(self.files.items()))

    def __eq__(self, other):
        return self.key() == other.key()

    def __hash__(self):
        return hash(self.key())

    def differs_from(self, other):
        """In words, with the lines."""
        told = []
        if self.status != other.status:
            told.append(f"exit status {self.status}, plain {other.status}")
        for name in ("out", "err"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                lines = list(difflib.unified_diff(theirs.splitlines(), ours.splitlines(), f"plain std{name}", f"std{name}", "", "", 1, "")) or \
                    [f"std{name}: the line ends differ"]
                told += [line[:300] for line in lines[:24]] + (["..."] if len(lines) > 24 else [])
        for path in sorted(self.files.keys() | other.files.keys()):
            ours, theirs = self.files.get(path), other.files.get(path)
            if ours != theirs:
                told.append(f"file {path}: {'missing' if ours is None else 'not there under plain' if theirs is None else 'other content'}")
        return told[:40]


def rewritten(program, text):
    for pattern, replacement in program.normal:
        text = re.sub(pattern, replacement, text, flags=re.M)
    return text


class Place:
    """The temporary folder with all that the programs use, and the processes that are alive."""

    def __init__(self, keep):
        self.keep = keep
        self.folder = pathlib.Path(keep).absolute() if keep else pathlib.Path(tempfile.mkdtemp(prefix="unmodified-"))
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o755)
        self.mark = f"UNMODIFIED_PROGRAMS={self.folder}".encode()
        self.groups, self.lock, self.stopped = set(), threading.Lock(), False
        # A build that goes on beside us changes nothing in the midst of the runs.
        self.bin = self.folder / "bin"
        self.bin.mkdir(exist_ok=True)
        for file in ("libstepalloc.so", "libstepalloc_marks.so", "stepalloc"):
            if (TARGET / file).exists():
                shutil.copy(TARGET / file, self.bin / file)
        self.library = self.bin / "libstepalloc.so"
        self.common = self.folder / "common"
        self.common.mkdir(exist_ok=True)
        dice = random.Random(1)
        write = lambda name, text: self.common.joinpath(name).write_text(text)
        write("numbers", "".join(f"{dice.randrange(10**7)} {dice.randrange(1000)}\n" for _ in range(60000)))
        write("many.c", MANY_C)
        self.common.joinpath("bytes").write_bytes(dice.randbytes(300000) + bytes(200000))
        rows = "".join(f"insert into t values({i}, {dice.randrange(10**6)}, '{'x' * dice.randrange(200)}');\n" for i in range(5000))
        write("t.sql", f"create table t(a, b, c); begin;\n{rows}commit; create index i on t(b);\n"
                       "select b % 100, count(*), sum(length(c)) from t group by 1;\n")

    def home(self, program):
        return self.folder / re.sub(r"[^A-Za-z0-9.+-]", "_", program.name)

    def environment(self, program, python):
        home = self.home(program)
        kept = {name: value for name, value in os.environ.items() if name.startswith(("OPENBLAS_", "RUSTUP_HOME"))}
        ports = [free_port(), free_port()]
        path = f"{os.path.dirname(python)}:{PATH}" if python and python != "/usr/bin/python3" else PATH
        return {**kept, "PATH": path, "HOME": str(home / "run"), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC",
                "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "2", "SOURCE_DATE_EPOCH": "0", "LOGNAME": "root", "USER": "root",
                "COMMON": str(self.common), "IN": str(home / "in"), "RUN": str(home / "run"), "PORT": str(ports[0]), "PORT2": str(ports[1]),
                "PY": python or "/usr/bin/python3", "NEW_PYTHON": new_python() or "", "TMPDIR": str(home), "UNMODIFIED_PROGRAMS": str(self.folder), **program.env}

    def prepare(self, program, python):
        """Makes its files; returns what went wrong, or None."""
        home = self.home(program)
        shutil.rmtree(home, ignore_errors=True)
        for folder in (home, home / "in"):
            folder.mkdir()
            folder.chmod(0o777)
        for name, text in program.files.items():
            home.joinpath("in", name).write_text(text)
        # The folder is made anew by the script itself, so that `compare` has the same to run.
        script = 'export TMPDIR=$RUN.tmp; rm -rf "$RUN" "$TMPDIR"; mkdir -m 777 "$RUN" "$TMPDIR"; cd "$RUN"\n'
        home.joinpath("script.sh").write_text(script + program.script + "\n")
        if not program.prepare:
            return None
        status, out, err, _ = self.execute(["bash", "-eu", "-c", program.prepare], self.environment(program, python), home, 300)
        return None if status == 0 else f"preparing it ended with {status}: {last_line(err) or last_line(out)}"

    def execute(self, command, environment, folder, timeout):
        """Runs a command in a session of its own, until it and all that it has started are gone."""
        out, err = folder / "stdout", folder / "stderr"
        with open(out, "wb") as to_out, open(err, "wb") as to_err:
            with self.lock:
                if self.stopped:
                    raise Stopped
                started = time.monotonic()
                process = subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err,
                                           start_new_session=True)
                self.groups.add(process.pid)
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = f"none within {timeout} s"
            seconds = time.monotonic() - started
            self.end(process)
        if self.stopped:
            raise Stopped
        return status, out.read_bytes().decode(errors="backslashreplace"), err.read_bytes().decode(errors="backslashreplace"), seconds

    def end(self, process):
        """Ends what is left of a run."""
        kill_group(process.pid)
        process.wait()
        with self.lock:
            self.groups.discard(process.pid)

    def run(self, program, python, more):
        home = self.home(program)
        figures = home / "figures"
        figures.unlink(missing_ok=True)
        status, out, err, seconds = self.execute(["bash", str(home / "script.sh")], {**self.environment(program, python), **more}, home, program.timeout)
        # What left the session is found by its environment.
        self.end_strays(f"RUN={home / 'run'}".encode())
        planned = 0
        if figures.exists():
            planned = sum('"phase":"planned"' in line.replace(" ", "") for line in figures.read_text(errors="replace").splitlines())
        return Outcome(program, status, out, err, digests(home / "run", program.ignore), seconds, planned)

    def end_strays(self, mark):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    environment = pathlib.Path(entry.path, "environ").read_bytes()
                    if self.mark in environment and mark in environment:
                        os.kill(int(entry.name), signal.SIGKILL)
                except OSError:
                    pass

    def close(self):
        """Ends all processes and removes what was written."""
        with self.lock:
            self.stopped = True
            groups = list(self.groups)
        for group in groups:
            kill_group(group)
        self.end_strays(self.mark)
        if not self.keep:
            for _ in range(50):
                shutil.rmtree(self.folder, ignore_errors=True)
                if not self.folder.exists():
                    break
                time.sleep(0.1)


def kill_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def digests(folder, ignored):
    """Of all files beneath it."""
    found = {}
    for path in sorted(folder.rglob("*")) if folder.exists() else []:
        name = str(path.relative_to(folder))
        if any(fnmatch.fnmatch(name, pattern) for pattern in ignored):
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def settings(place, program, backend, mode):
    """The environment of one mode, and how often it is run."""
    home = place.home(program)
    own = {"LD_PRELOAD": str(place.library), "STEPALLOC_BACKEND": backend}
    if mode == "plain":
        return own, 1
    # As `stepalloc run` does it: a process that may not write there, of another user or in a sandbox, says nothing.
    own.update(SMALL, STEPALLOC_JSON=str(home / "figures"), STEPALLOC_ATTACHED=str(home / "attached"))
    if mode == "early":
        return own, 1
    plans = home / f"plans-{backend}"
    plans.mkdir(exist_ok=True)
    plans.chmod(0o777)
    (plans / "plan").unlink(missing_ok=True)
    return {**own, "STEPALLOC_PLAN": str(plans / "plan")}, 2


# ---- Same or different.

class Verdict:
    """Of a program: rows for the CSV, and what is to be told."""

    def __init__(self, program):
        self.program, self.rows, self.told, self.lines = program, [], [], None
        self.state, self.why, self.runs, self.same, self.different, self.planned, self.seconds = "same", "", 0, 0, 0, 0, 0.0
        # With --measure: above a limit, and not by the library's own memory alone.
        self.far = False


def references(place, program, python, verdict):
    """The outcomes of plain runs: one, or two where it has two ways; None where it varies more than that."""
    seen = [place.run(program, python, {}) for _ in range(2)]
    verdict.seconds = seen[0].seconds
    if seen[0] != seen[1]:
        seen += [place.run(program, python, {}) for _ in range(2)]
    verdict.runs += len(seen)
    if len(set(seen)) > 2:
        verdict.state, verdict.why = "varies", "varies by itself"
        verdict.told = ["varies by itself, without the library:", *seen[1].differs_from(seen[0])]
        return None
    first = seen[0]
    if isinstance(first.status, str) or first.status < 0 or first.status > 128 or (first.status != 0 and not program.may_fail):
        verdict.state, verdict.why = "not run", f"fails by itself ({first.status}): {last_line(first.err) or last_line(first.out)}"
        return None
    return list(dict.fromkeys(seen))


def judge(place, program, python, arguments):
    verdict = Verdict(program)
    fault = place.prepare(program, python)
    if fault:
        verdict.state, verdict.why = "not run", fault
        return verdict
    known = references(place, program, python, verdict)
    if known is None:
        return verdict
    verdict.rows.append([program.name, "none", "none", "same", f"{known[0].seconds:.2f}", 0, ""])
    for backend in arguments.backends:
        for mode in arguments.modes:
            more, times = settings(place, program, backend, mode)
            for time_of in range(times):
                outcome = place.run(program, python, more)
                verdict.runs += 1
                verdict.planned += outcome.planned > 0
                name = mode if times == 1 else f"{mode} {time_of + 1}"
                same = outcome in known
                if not same:
                    same = not tell_difference(place, program, python, (backend, mode, name), more, outcome, known, verdict)
                verdict.same += same
                verdict.different += not same
                verdict.rows.append([program.name, backend, name, "same" if same else "different", f"{outcome.seconds:.2f}", outcome.planned,
                                     "" if same else "; ".join(outcome.differs_from(known[0]))[:500]])
    if verdict.different:
        verdict.state = "different"
    return verdict


def tell_difference(place, program, python, how, more, outcome, known, verdict):
    """Whether it is the library's: plain runs may show the same yet. Says how often it happens."""
    for _ in range(2):
        again = place.run(program, python, {})
        verdict.runs += 1
        if again not in known:
            known.append(again)
        if outcome in known:
            return False
    repeated = [place.run(program, python, more) for _ in range(2)]
    verdict.runs += len(repeated)
    often = 1 + sum(one not in known for one in repeated)
    backend, mode, name = how
    assigned = " ".join(f"{key}={shlex.quote(value)}" for key, value in {**place.environment(program, python), **more}.items())
    lines = outcome.differs_from(known[0])
    # Once is enough where every mode differs alike.
    shown = ["as before"] if lines == verdict.lines else lines
    verdict.lines = lines
    verdict.told += [f"{program.name}, {backend}, {name}: {often} of 3 runs differ", *shown,
                     f"again: tests/unmodified.py --only {shlex.quote(program.name)} --backends {backend} --modes {mode} --keep /tmp/kept",
                     f"alone: env -i {assigned} bash {place.home(program)}/script.sh"]
    return True


# ---- Measuring.

def measure(place, program, python, arguments):
    """Rows of ratios: ours by the better of plain and the backend alone."""
    verdict = Verdict(program)
    fault = place.prepare(program, python)
    if fault:
        verdict.state, verdict.why = "not run", fault
        return verdict
    allocators, given, pairs = ["glibc"], [], []
    for backend in arguments.backends:
        allocators += [] if backend == "glibc" else [backend]
        for mode in arguments.modes:
            more, _ = settings(place, program, backend, mode)
            # Not as compare's own stepalloc/BACKEND: each process would say that it is there, and what it did, in files.
            variables = ",".join(f"{key}={value}" for key, value in more.items() if key not in ("LD_PRELOAD", "STEPALLOC_JSON", "STEPALLOC_ATTACHED"))
            given += ["--allocator", f"{mode}/{backend}={place.library},{variables}"]
            pairs.append((backend, mode, f"{mode}/{backend}"))
    home = place.home(program)
    # How many processes it starts that load the library.
    attached = home / "attached"
    place.run(program, python, {"LD_PRELOAD": str(place.library), "STEPALLOC_ATTACHED": str(attached)})
    processes = len(attached.read_text().splitlines()) if attached.exists() else 0
    figures = home / "compare.json"
    command = [str(place.bin / "stepalloc"), "compare", "--no-report", "--json", str(figures), "--minutes", str(arguments.minutes),
               "--allocators", ",".join(allocators), *given, "--", "bash", str(home / "script.sh")]
    status, _, err, verdict.seconds = place.execute(command, place.environment(program, python), home, 60 * arguments.minutes + 60 * program.timeout)
    try:
        found = {row["allocator"]: row for row in json.loads(figures.read_text())["results"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        verdict.state, verdict.why = "not run", f"compare ended with {status}: {last_line(err)} ({error!r})"
        return verdict
    for backend, mode, name in pairs:
        verdict.runs += len(found[name]["runs"])
        if failure := found[name]["failure"] or found["glibc"]["failure"]:
            verdict.told.append(f"{program.name}, {name}: {failure}")
            continue
        row = [program.name, backend, mode, processes, len(found[name]["runs"])]
        flags = []
        for figure, key, limit in (("CPU", "cpu_seconds", CPU_LIMIT), ("VmHWM", "vm_hwm_bytes", PEAK_LIMIT)):
            rivals = ["glibc"] + ([backend] if backend != "glibc" and not found[backend]["failure"] else [])
            medians = {one: median_of(found[one]["runs"], key) for one in [name, *rivals]}
            if None in medians.values():
                # It ends before its peak is seen.
                row += ["", "", "", "", ""]
                continue
            best = min(rivals, key=medians.get)
            ratio, error = ratio_of(found[name]["runs"], found[best]["runs"], key)
            row += [best, f"{medians[best]:.4g}", f"{medians[name]:.4g}", f"{ratio:.4f}", f"{error:.4f}"]
            if ratio > limit:
                sure = ratio - 2 * error > limit
                more = medians[name] - medians[best]
                said = f"{figure} {ratio:.3f} ± {error:.3f} > {limit}, "
                if figure == "VmHWM":
                    said += f"{more / 1024:.0f} KiB more"
                    far = more > LIBRARY_BYTES
                else:
                    said += f"{1000 * more:.1f} ms more with {processes} processes"
                    far = more > processes * LOAD_SECONDS
                flags.append(said + ("" if sure else " (within chance)"))
                if sure:
                    verdict.different, verdict.state = verdict.different + 1, "above"
                    verdict.far = verdict.far or far
        verdict.rows.append([*row, "; ".join(flags)])
        verdict.told += [f"{program.name}, {name}: {flag}" for flag in flags]
    return verdict


def median_of(runs, key):
    """None where too few runs were long enough for the figure to be seen."""
    seen = [run[key] for run in runs if run[key] is not None]
    return statistics.median(seen) if 2 * len(seen) > len(runs) else None


def ratio_of(ours, theirs, key):
    """The mean ratio of runs of the same round, of their middle half, and its standard error."""
    logs = []
    for own, other in zip(ours, theirs):
        if not own[key] or not other[key]:
            continue
        log = math.log(own[key] / other[key])
        logs.append(log)
    if not logs:
        return math.nan, math.nan
    # The middle half, so that one run of a busy machine does not decide.
    ordered = sorted(logs)
    cut = len(ordered) // 4 if len(ordered) >= 5 else 0
    middle = ordered[cut:len(ordered) - cut]
    error = 1.2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return math.exp(statistics.fmean(middle)), error


# ---- The whole.

def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the programs, and why one cannot run here")
    parser.add_argument("--quick", action="store_true", help="only those of a minimal Debian, in less than a minute")
    parser.add_argument("--install", action="store_true", help="install what is missing: apt-get as root, and pip into target/unmodified-venvs")
    parser.add_argument("--venv", action="append", default=[], metavar="DIR", help="look for packages of PyPI here; may be given again")
    parser.add_argument("--backends", default="glibc,jemalloc,mimalloc", metavar="B,..")
    parser.add_argument("--modes", metavar="M,..", help="plain,early,kept (with --measure: plain)")
    parser.add_argument("--only", metavar="NAME,..", help="only these; a * stands for anything")
    parser.add_argument("--jobs", type=int, metavar="N", help="programs at once; as many as there are processors, 1 with --measure")
    parser.add_argument("--keep", metavar="DIR", help="work in this folder, and leave it")
    parser.add_argument("--measure", action="store_true", help="compare times and peaks in place of outputs")
    parser.add_argument("--minutes", type=float, default=0.5, metavar="M", help="with --measure: no more than five rounds begin after so many minutes")
    parser.add_argument("--output", metavar="CSV", help="write a line for each run, or each ratio")
    arguments = parser.parse_args()
    arguments.backends = arguments.backends.split(",")
    arguments.modes = (arguments.modes or ("plain" if arguments.measure else ",".join(MODES))).split(",")
    for given, known in ((arguments.backends, BACKENDS), (arguments.modes, MODES)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    chosen = [program for program in PROGRAMS if program.quick or not arguments.quick]
    if arguments.only:
        patterns = arguments.only.split(",")
        chosen = [program for program in PROGRAMS if any(fnmatch.fnmatch(program.name, pattern) for pattern in patterns)]
        if unknown := [pattern for pattern in patterns if not any(fnmatch.fnmatch(program.name, pattern) for program in PROGRAMS)]:
            parser.error(f"no program is called {', '.join(unknown)}; --list names them")
    if len({program.name for program in PROGRAMS}) != len(PROGRAMS):
        sys.exit("two programs of the table have one name")
    arguments.jobs = arguments.jobs or (1 if arguments.measure else min(2, os.cpu_count() or 1))
    return arguments, chosen


def main():
    arguments, chosen = parsed()
    interpreters = Interpreters(arguments.venv)
    if arguments.list:
        for program in chosen:
            print(f"{program.name:36} {missing(program, interpreters) or 'here'}")
        return 0
    faults = install(chosen, interpreters) if arguments.install else {}
    if arguments.install:
        interpreters = Interpreters(arguments.venv)
    needed = ["libstepalloc.so"] + (["stepalloc"] if arguments.measure else [])
    if lacking := [file for file in needed if not (TARGET / file).exists()]:
        print(f"{', '.join(str(TARGET / file) for file in lacking)}: not built; cargo build --release --workspace", file=sys.stderr)
        return 2
    begun, place = time.monotonic(), Place(arguments.keep)
    # A shell that starts us in the background ignores SIGINT for us.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    output = open(arguments.output, "w", newline="") if arguments.output else None
    table = csv.writer(output) if output else None
    if table:
        table.writerow(["program", "backend", "mode", "processes", "runs", "cpu_rival", "cpu_seconds_rival", "cpu_seconds", "cpu_ratio", "cpu_error", "peak_rival", "peak_rival_bytes",
                        "peak_bytes", "peak_ratio", "peak_error", "above"] if arguments.measure else ["program", "backend", "mode", "verdict", "seconds", "planned_processes", "what"])
    verdicts, executor = [], concurrent.futures.ThreadPoolExecutor(arguments.jobs)

    def one(program):
        why = missing(program, interpreters)
        if why:
            verdict = Verdict(program)
            verdict.state, verdict.why = "not run", faults.get(program.name, why)
            return verdict
        python = interpreters.with_all([module for module, _, _ in program.pip]) if program.pip else None
        verdict = (measure if arguments.measure else judge)(place, program, python, arguments)
        if not arguments.keep:
            shutil.rmtree(place.home(program), ignore_errors=True)
        return verdict

    try:
        futures = {executor.submit(one, program): program for program in chosen}
        for count, future in enumerate(concurrent.futures.as_completed(futures), 1):
            verdict = future.result()
            verdicts.append(verdict)
            words = {"same": f"same, {verdict.runs} runs, {verdict.planned} with plans", "different": f"DIFFERENT, {verdict.different} of {verdict.runs} runs",
                     "above": f"ABOVE, {verdict.different} figures"}.get(verdict.state, f"{verdict.state}: {verdict.why}")
            if arguments.measure and verdict.rows:
                words = ", ".join(f"{row[1]} {row[2]}: CPU {row[8]} ± {row[9]}, VmHWM " + (f"{row[13]} ± {row[14]}" if row[13] else "not seen") for row in verdict.rows) + ("  ABOVE" if verdict.state == "above" else "")
            print(f"[{count}/{len(chosen)}] {verdict.program.name:32} {verdict.seconds:6.2f} s  {words}", flush=True)
            for line in verdict.told:
                print("    " + line, flush=True)
            if table:
                table.writerows(verdict.rows or [[verdict.program.name, "", "", verdict.state, "", "", verdict.why]])
                output.flush()
    except (KeyboardInterrupt, Stopped):
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        # A second signal changes nothing: what is left is removed.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        place.close()
        executor.shutdown(wait=True, cancel_futures=True)
        place.close()
    return told(verdicts, arguments, time.monotonic() - begun)


def interrupted(*_):
    raise KeyboardInterrupt


def told(verdicts, arguments, seconds):
    """The summary, and the exit status."""
    def those(state):
        return [verdict for verdict in verdicts if verdict.state == state]
    ran = [verdict for verdict in verdicts if verdict.state != "not run"]
    runs = sum(verdict.runs for verdict in verdicts)
    print(f"\n{len(verdicts)} programs, {len(ran)} run, {runs} runs, {seconds:.0f} s")
    if arguments.measure:
        print(f"above the limits of {CPU_LIMIT} CPU and {PEAK_LIMIT} VmHWM: {', '.join(v.program.name for v in those('above')) or 'none'}")
        print(f"of these by more than {LIBRARY_BYTES >> 10} KiB, or {1000 * LOAD_SECONDS} ms for each process: {', '.join(v.program.name for v in those('above') if v.far) or 'none'}")
    else:
        print(f"same: {len(those('same'))} programs, {sum(v.same for v in verdicts)} runs, {sum(v.planned for v in verdicts)} of them with plans")
        print(f"different: {len(those('different'))} programs, {sum(v.different for v in verdicts)} runs")
        for verdict in those("different"):
            print(f"  {verdict.program.name}: " + "; ".join(line for line in verdict.told if " runs differ" in line))
        for verdict in those("varies"):
            print(f"varies by itself: {verdict.program.name}")
    for verdict in those("not run"):
        print(f"not run: {verdict.program.name}: {verdict.why}")
    if path := os.environ.get("SUITE_COUNTS"):
        with open(path, "a") as counts:
            counts.write(f"unmodified,programs,{len(ran)}\nunmodified,runs,{runs}\n")
    return 1 if those("different") or those("varies") or those("above") else 0


if __name__ == "__main__":
    sys.exit(main())
