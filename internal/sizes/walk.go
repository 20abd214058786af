package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// walkTasks is by how many tasks the two runs of walkFiles differ.
const walkTasks = 1000

// walkFiles returns the product files that a task of a shared queue walks through, on any
// of its nodes: those with a statement that more tasks, in the same virtual time, run more
// often. Half of the tasks are enough, because an owner is not always remote.
func walkFiles() ([]string, error) {
	dir, err := os.MkdirTemp("", "sizes")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	few, err := cover(filepath.Join(dir, "few"), 1)
	if err != nil {
		return nil, err
	}
	many, err := cover(filepath.Join(dir, "many"), 1+walkTasks)
	if err != nil {
		return nil, err
	}
	var files []string
	for block, n := range many {
		file, _, _ := strings.Cut(block, ":")
		if n-few[block] >= walkTasks/2 && !slices.Contains(files, file) && !strings.HasSuffix(file, ".pb.go") && !strings.HasPrefix(file, "transport/transporttest/") {
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return files, nil
}

// cover returns how often each block of the product runs while tasks walk through a queue.
func cover(profile string, tasks int) (map[string]int, error) {
	c := exec.Command("go", "test", "./node", "-count=1", "-run", "^TestWalkOfAQueueTask$", "-covermode=count", "-coverpkg=./...", "-coverprofile="+profile)
	c.Env = append(os.Environ(), "BALEFIRE_WALK="+strconv.Itoa(tasks))
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("run %d tasks: %w\n%s", tasks, err, out)
	}
	f, err := os.Open(profile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counts := map[string]int{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // module/file.go:from,to statements count
		if len(fields) != 3 {
			continue
		}
		n, err := strconv.Atoi(fields[2])
		if err != nil {
			return nil, err
		}
		counts[strings.TrimPrefix(fields[0], "github.com/balefire/balefire/")] += n
	}
	return counts, lines.Err()
}
