#!/bin/sh
# Makes what the Makefile needs. It says what it installs and asks nothing.
#
#   tools/setup.sh environment FOLDER    a Python environment with deployer in it
#   tools/setup.sh rehearsal             the programs that practice hosts need
#   tools/setup.sh browser               a headless browser, for the tests of pages
#   tools/setup.sh compiler              a C compiler, for the server that load clients are measured with
set -eu
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "root is needed for: $*  (run make as root, or install sudo)"
    fi
}

install_packages() {
    command -v apt-get >/dev/null ||
        fail "this machine lacks programs that come with the Debian packages $*; install them and run make again"
    say "installing Debian packages: $*"
    policy=/usr/sbin/policy-rc.d
    made_policy=
    if [ ! -e "$policy" ]; then
        # Nothing that is installed here shall start a service on this machine (an SSH server, say).
        as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
        made_policy=yes
    fi
    status=0
    { as_root apt-get update -qq &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; } ||
        status=$?
    [ -z "$made_policy" ] || as_root rm -f "$policy"
    [ "$status" = 0 ] || fail "apt-get could not install: $*"
}

find_python() {
    candidates=${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}
    for candidate in $candidates; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "deployer needs Python 3.11 or later, and none of these is: $candidates." \
        "Install one and name it: make PYTHON=/path/to/python3.12 ..."
}

environment() {
    folder=$1
    if ! "$folder/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$(find_python)
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            install_packages "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
        fi
        say "making $folder with $python ($("$python" --version))"
        rm -rf "$folder"
        "$python" -m venv "$folder"
    fi
    say "installing deployer and its dependencies into $folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
}

rehearsal() {
    packages=
    ssh_server=present
    need() {
        PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null || packages="$packages $2"
    }
    need systemd-nspawn systemd-container
    need ssh openssh-client
    need ip iproute2
    need dbus-daemon dbus
    need sudo sudo
    need mkfs.ext4 e2fsprogs
    need losetup mount
    need nsenter util-linux
    PATH="$PATH:/usr/sbin:/sbin" command -v sshd >/dev/null || ssh_server=missing
    [ "$ssh_server" = present ] || packages="$packages openssh-server"
    [ -n "$packages" ] || return 0
    # shellcheck disable=SC2086  # a list of words
    install_packages $packages
    if [ "$ssh_server" = missing ] && [ -d /run/systemd/system ]; then
        say "practice hosts run sshd; this machine's own stays off"
        as_root systemctl disable --quiet --now ssh.service ssh.socket 2>/dev/null || true
    fi
}

browser() {
    for name in "${DEPLOYER_BROWSER-}" chromium-headless-shell chromium google-chrome chromium-browser; do
        [ -z "$name" ] || ! command -v "$name" >/dev/null || return 0
    done
    # Its tests say so where there is none; everything else does without.
    (install_packages chromium-headless-shell) || say "no headless browser could be installed"
}

compiler() {
    for name in cc gcc clang; do
        ! command -v "$name" >/dev/null || return 0
    done
    install_packages gcc libc6-dev
}

case "${1-}" in
    environment) environment "${2:?folder}" ;;
    rehearsal) rehearsal ;;
    browser) browser ;;
    compiler) compiler ;;
    *) fail "usage: tools/setup.sh environment FOLDER | rehearsal | browser | compiler" ;;
esac
