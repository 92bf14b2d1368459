#!/bin/sh
# Makes sure that the sandbox's three default images are on this machine's engine.
#
# A tag that is there is left alone; an absent one is pulled; only when that fails (no way to the
# registry) does a stand-in take its tag: one small Debian root file system with sh, python3 and
# node, unpacked from this machine's own apt sources. Stand-ins are for tests, which therefore
# assert no interpreter version and no libc.
#
# Needs: docker, apt-get, dpkg-deb, tar. PULL_S bounds one pull attempt (seconds, default 90).
set -eu

TAGS="python:3.12-alpine node:22-alpine alpine:3.20"
PACKAGES="dash coreutils grep sed findutils tar python3 nodejs iproute2"

main() {
    absent=""
    for tag in $TAGS; do
        present "$tag" || pulled "$tag" || absent="$absent $tag"
    done
    [ -z "$absent" ] || stand_in $absent
    for tag in $TAGS; do present "$tag"; done
    echo "images: ready: $TAGS"
}

present() { docker image inspect "$1" >/dev/null 2>&1; }

pulled() {
    echo "images: pulling $1"
    timeout "${PULL_S:-90}" docker pull --quiet "$1"
}

stand_in() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    echo "images: building a stand-in for:$*"
    download
    unpack
    first=$1
    tar -C "$work/root" --numeric-owner --owner=0 --group=0 -c . | docker import - "$first" >/dev/null
    for tag in "$@"; do [ "$tag" = "$first" ] || docker tag "$first" "$tag"; done
    docker run --rm --network none "$first" sh -c 'python3 -c "import json, socket" && node -e 0'
}

# apt resolves the closure against an empty machine, so libc and friends come along.
download() {
    mkdir -p "$work/archives/partial"
    : >"$work/status"
    set -- -qq -y --no-install-recommends --download-only \
        -o Dir::State::status="$work/status" -o Dir::Cache::archives="$work/archives" \
        -o APT::Sandbox::User=root -o Debug::NoLocking=1
    # shellcheck disable=SC2086  # a list of words
    apt-get "$@" install $PACKAGES >/dev/null 2>&1 ||
        { apt-get -qq update && apt-get "$@" install $PACKAGES; }
}

# No maintainer script runs: what the packages hold is all that an interpreter needs.
unpack() {
    mkdir -p "$work/root/usr"
    for folder in bin sbin lib lib32 lib64 libx32; do
        mkdir -p "$work/root/usr/$folder"
        ln -s "usr/$folder" "$work/root/$folder"
    done
    for archive in "$work"/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$archive" | tar -C "$work/root" -x --keep-directory-symlink
    done
    [ -e "$work/root/usr/bin/sh" ] || ln -s dash "$work/root/usr/bin/sh"
    rm -rf "$work/root/usr/share/doc" "$work/root/usr/share/man" "$work/root/usr/share/locale"
    mkdir -p "$work/root/etc" "$work/root/tmp" "$work/root/workspace"
    chmod 1777 "$work/root/tmp"
    printf 'root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/sh\n' >"$work/root/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$work/root/etc/group"
}

main
