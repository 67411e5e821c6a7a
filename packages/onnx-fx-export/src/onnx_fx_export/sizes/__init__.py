"""What is known of dynamic sizes: what torch assumed, what the code asked, and what holds at other sizes."""
