package main

import (
	"slices"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/wire"
)

// A variable with a value is one, whatever is in the value; names may stand together.
func TestEnvFlag(t *testing.T) {
	var got []string
	for _, text := range []string{"A,B", `X=a,"b",c=d`, "", "C"} {
		if err := (envValue{&got}).Set(text); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"A", "B", `X=a,"b",c=d`, "C"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Flags accept the same units as the configuration, and reject the same values.
func TestFlagsHaveTheUnitsOfTheConfiguration(t *testing.T) {
	var s wire.HandlerSpec
	c := &cobra.Command{}
	addHandlerFlags(c, &s)
	if err := c.ParseFlags([]string{"--run-timeout", "1d", "--max-output", "10MiB", "--max-body", "1.5GB"}); err != nil {
		t.Fatal(err)
	}
	if s.Timeout != "24h0m0s" || s.MaxOutput != 10<<20 || s.MaxBody != 1_500_000_000 {
		t.Errorf("timeout %s, output %d, body %d", s.Timeout, s.MaxOutput, s.MaxBody)
	}
	if err := c.ParseFlags([]string{"--run-timeout", "0"}); err != nil || s.Timeout != "0" {
		t.Errorf("no limit: %q, %v", s.Timeout, err)
	}
	for _, bad := range [][]string{{"--run-timeout", "5"}, {"--run-timeout", "-1s"}, {"--run-timeout", "soon"}, {"--max-output", "10 MB of it"}, {"--max-body", "-1"}} {
		if err := c.ParseFlags(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	var d time.Duration
	if err := (spanValue{&d}).Set("1d12h"); err != nil || d != 36*time.Hour || (spanValue{&d}).String() != "36h" {
		t.Errorf("%s, %v", spanValue{&d}, err)
	}
}
