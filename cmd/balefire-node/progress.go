package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

// barCells is the width of a progress bar in cells.
const barCells = 24

// progressBar draws the progress of a body on a terminal of the given width. A library for
// this would add 200 KB to the binary, most of what its size limit leaves.
func progressBar(x wire.Transfer, columns int) string {
	share := 0.0
	if x.Size > 0 {
		share = min(float64(x.Bytes)/float64(x.Size), 1)
	}
	full := int(share * barCells)
	way := "from"
	if x.Direction == "out" {
		way = "to"
	}
	text := fmt.Sprintf("%s %s %s %3d %% ", x.What, way, sanitize(x.Peer), int(share*100))
	tail := fmt.Sprintf(" %s/%s", formatSize(x.Bytes), formatSize(x.Size))
	if x.Rate > 0 {
		tail += fmt.Sprintf("  %s/s", formatSize(int64(x.Rate)))
	}
	if x.Left > 0 {
		tail += "  " + formatDuration(time.Duration(x.Left*float64(time.Second))) + " left"
	}
	if displayWidth(text)+barCells+displayWidth(tail) <= columns {
		text += "[" + strings.Repeat("=", full) + strings.Repeat(" ", barCells-full) + "]"
	}
	return text + tail
}

// showTransfers shows the first body in transfer and reports whether there is one. On a
// terminal it redraws a progress bar; elsewhere it prints a line every 10 seconds.
func (f *follower) showTransfers(all []wire.Transfer) bool {
	if len(all) == 0 || f.w.flags.quiet {
		return false
	}
	if f.w.errTTY {
		columns, _ := f.w.sizeOf(os.Stderr, true)
		fmt.Fprintf(f.w.err, "\r\x1b[K%s", progressBar(all[0], cmp.Or(columns, usualColumns)))
		f.statusShown = true
		return true
	}
	if now := f.w.clock.Mono(); f.lastTransfer == 0 || now-f.lastTransfer >= transferLogInterval {
		f.lastTransfer = now
		f.w.infof("… %s", sanitize(prose.Transfer(&all[0])))
	}
	return true
}

const (
	transferLogInterval = 10 * time.Second // between two lines about a transfer
	usualColumns        = 80               // of a terminal that does not tell its width
)
