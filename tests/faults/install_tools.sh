#!/usr/bin/env bash
# What the fault tests and those in a browser use beside Python. Without it they skip, each with its reason.
set -euo pipefail
missing=()
for tool in strace:strace mkfs.ext4:e2fsprogs chattr:e2fsprogs mount:mount chromium:chromium; do
  command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "some tests will skip: ${missing[*]} missing, and only root can install with apt-get" >&2
  exit 0
fi
apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
  echo "some tests will skip: apt-get could not install ${missing[*]}" >&2
