#!/usr/bin/env bash
# Installs what the engine and the test cluster need from Debian, where that is missing and may be installed; else says what
# will not work. Looked for by what it brings, not by package name: a machine may have containerd from elsewhere.
set -euo pipefail

missing=() lost=()
need() { # need PACKAGE WHAT-IS-LOST TEST...
  local package=$1 loss=$2
  shift 2
  "$@" >/dev/null 2>&1 && return
  missing+=("$package") lost+=("$loss")
}
has() { PATH=$PATH:/usr/sbin:/sbin command -v "$1"; }
cni_plugins() { compgen -G '/usr/lib/cni/ptp' || compgen -G '/opt/cni/bin/ptp'; }
numa() { PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep -F libnuma.so.1; }

# Debian's Python leaves out ensurepip, without which there are no virtual environments.
need python3-venv "everything" "${PYTHON:-python3}" -c 'import ensurepip, venv'
need libnuma1 "the CPU engine: make demo, the engine tests" numa
need openssl "the test cluster" has openssl
need containerd "real pods in tests" has containerd
need runc "real pods in tests" has runc
need containernetworking-plugins "real pods in tests" cni_plugins
need nftables "real pods in tests" has nft
need iproute2 "real pods in tests" has ip
need mmdebstrap "the builds of the images in tests" has mmdebstrap
need buildah "the builds of the images in tests" has buildah
# promtool and a real Prometheus; the daemon that the package would start is held back as containerd's is.
need prometheus "the tests of rules, alerts and history" has promtool
((${#missing[@]})) || exit 0

if ((EUID != 0)) || ! has apt-get >/dev/null; then
  echo "packages: missing here, and only root with apt-get can install them:"
  for index in "${!missing[@]}"; do echo "  ${missing[index]}: without it not ${lost[index]}"; done
  exit 0
fi
echo "packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# The containerd package would start a daemon; the tests start their own. policy-rc.d is Debian's way to say so.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
apt-get install -qq --no-install-recommends --no-remove -o Dpkg::Use-Pty=0 "${missing[@]}" >/dev/null
