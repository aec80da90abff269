#!/bin/sh
# A picture of a page for the documentation, by a headless browser (`tools/setup.sh browser`).
#
#   tools/page_picture.sh PAGE.html OUTPUT.png [WIDTH,HEIGHT]
set -eu
page=$(realpath "$1")
for name in "${DEPLOYER_BROWSER-}" chromium-headless-shell chromium google-chrome; do
    [ -n "$name" ] && command -v "$name" >/dev/null || continue
    "$name" --headless --no-sandbox --disable-gpu --hide-scrollbars --blink-settings=preferredColorScheme=1 \
        --window-size="${3-1180,1170}" --screenshot="$2" "file://$page" 2>/dev/null
    exit
done
echo "no headless browser: tools/setup.sh browser" >&2
exit 1
