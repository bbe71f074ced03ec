// Waits until a run dir has something to tell; the page of the job then takes the place of this one.
"use strict";
(() => {
  const AGAIN = 2000; // milliseconds until a connection that was refused is tried again
  const $ = (id) => document.getElementById(id);

  function connect() {
    const source = new EventSource("news");
    source.onmessage = (message) => {
      const { live, job } = JSON.parse(message.data);
      if (job) {
        source.close();
        location.reload();
      } else if (live) {
        $("why").textContent = `${live.state}: ${live.sentence}`;
        $("all").hidden = !live.listed;
      }
    };
    source.onerror = () => {
      $("why").textContent = "No connection to the dashboard.";
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN);
    };
  }

  connect();
})();
