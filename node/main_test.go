package node

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// TestMain lets twice as many tests run in parallel as there are processors, unless
// the command line says otherwise or something is fuzzed: many wait for processes or timers.
// It trades memory for speed unless GOGC is set.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) {
		given = given || f.Name == "test.parallel" || f.Name == "test.fuzz" || f.Name == "test.fuzzworker"
	})
	if !given {
		if err := flag.Set("test.parallel", fmt.Sprint(2*runtime.GOMAXPROCS(0))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(m.Run())
}
