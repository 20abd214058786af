package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// The parts of the CPU time of a task.
const (
	partSeal       = "seal and open"
	partSign       = "sign and verify"
	partStore      = "store: group commit, engine, fsync"
	partBacklog    = "backlog: queue in memory"
	partWire       = "wire: framing, libp2p, TLS"
	partCode       = "encode and decode records"
	partSubsystems = "outbox, inbox, node"
	partMemory     = "allocation and garbage collection"
	partLoad       = "the load itself"
	partRest       = "scheduler and the rest"
)

var parts = []string{partSeal, partSign, partStore, partBacklog, partWire, partCode, partSubsystems, partMemory, partLoad, partRest}

const modulePath = "github.com/balefire/balefire/"

// rules assign functions to parts, by prefix of their names. The first match is used; a
// function without a match belongs to the part of its caller.
var rules = []struct{ prefix, part string }{
	{"runtime.mallocgc", partMemory},
	{"runtime.gcBgMarkWorker", partMemory},
	{"runtime.gcAssistAlloc", partMemory},
	{"runtime.bgsweep", partMemory},
	{"runtime.bgscavenge", partMemory},
	{"runtime.wbBufFlush", partMemory},
	{modulePath + "identity.(*Sealer)", partSeal},
	{modulePath + "identity.(*Keys).Open", partSeal},
	{modulePath + "identity.(*Keys).openSlot", partSeal},
	{modulePath + "identity.openBody", partSeal},
	{modulePath + "identity.pack", partSeal},
	{modulePath + "identity.unpack", partSeal},
	{modulePath + "identity.", partSign},
	{modulePath + "store/backlog.", partBacklog},
	{modulePath + "store", partStore},
	{"github.com/nutsdb/", partStore},
	{"github.com/cockroachdb/", partStore},
	{modulePath + "proto.(*Reader)", partWire},
	{modulePath + "proto.AppendFrame", partWire},
	{modulePath + "proto.Compress", partSeal},
	{modulePath + "proto.", partCode},
	{"google.golang.org/protobuf", partCode},
	{modulePath + "transport", partWire},
	{"github.com/libp2p/", partWire},
	{"github.com/multiformats/", partWire},
	{"github.com/quic-go/", partWire},
	{modulePath + "outbox.", partSubsystems},
	{modulePath + "inbox.", partSubsystems},
	{modulePath + "node.", partSubsystems},
	{modulePath + "agent", partSubsystems},
	{"main.", partLoad},
}

// partOf returns the part of a stack, whose innermost function is first.
func partOf(stack []string) string {
	for _, f := range stack {
		for _, r := range rules {
			if strings.HasPrefix(f, r.prefix) {
				return r.part
			}
		}
	}
	return partRest
}

// shares returns the fraction of the CPU time of each part in a profile; the sum is 1.
func shares(path string) (map[string]float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := profile.Parse(f)
	if err != nil {
		return nil, fmt.Errorf("read profile %s: %w", path, err)
	}
	value := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == "cpu" })
	if value < 0 {
		return nil, fmt.Errorf("read profile %s: not a CPU profile", path)
	}
	out, total := map[string]float64{}, 0.0
	for _, s := range p.Sample {
		v := float64(s.Value[value])
		out[partOf(stackOf(s))] += v
		total += v
	}
	for part := range out {
		out[part] /= total
	}
	return out, nil
}

// byPart returns the microseconds per task of each part, of a process with this CPU profile
// and usage.
func (r result) byPart(profile string, used usage) (map[string]float64, error) {
	c, err := shares(profile)
	if err != nil {
		return nil, err
	}
	for part := range c {
		c[part] *= r.perTask(used.cpu())
	}
	return c, nil
}

// byPart adds a row for each part and one for the total, with a column for each process.
func (t *table) byPart(columns []map[string]float64) {
	all := make([]float64, len(columns))
	for _, part := range parts {
		cells := []any{part}
		for i, c := range columns {
			cells = append(cells, us(c[part]))
			all[i] += c[part]
		}
		t.row(cells...)
	}
	cells := []any{"all"}
	for _, sum := range all {
		cells = append(cells, us(sum))
	}
	t.row(cells...)
}

// stackOf returns the names of the functions of a sample, the innermost first.
func stackOf(s *profile.Sample) (names []string) {
	for _, l := range s.Location {
		for _, line := range l.Line {
			if line.Function != nil {
				names = append(names, line.Function.Name)
			}
		}
	}
	return names
}
